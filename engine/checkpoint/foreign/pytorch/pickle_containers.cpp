// The machine's stack and memory, and the containers that opcodes fill.

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/foreign/pytorch/pickle_machine.h"

namespace dstrain {
namespace {

// A value takes about a hundred bytes here; a model of a million tensors has ten million.
constexpr std::size_t kMaxValues = 20'000'000;

}  // namespace

PickleMachine::Index PickleMachine::make(Node node) {
  if (document_.nodes_.size() == kMaxValues) {
    fail(fmt::format("more than {} values", kMaxValues));
  }
  document_.nodes_.push_back(std::move(node));
  return static_cast<Index>(document_.nodes_.size() - 1);
}

PickleMachine::Index PickleMachine::top() const {
  if (stack_.empty() || (!marks_.empty() && stack_.size() == marks_.back())) {
    fail("the stack is empty");
  }
  return stack_.back();
}

PickleMachine::Index PickleMachine::pop() {
  const Index index = top();
  stack_.pop_back();
  return index;
}

std::vector<PickleMachine::Index> PickleMachine::pop_to_mark() {
  if (marks_.empty()) {
    fail("there is no mark");
  }
  const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<Index> items(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  marks_.pop_back();
  return items;
}

void PickleMachine::remember(std::uint64_t key) {
  if (memo_.size() == kMaxValues) {
    fail(fmt::format("more than {} values to remember", kMaxValues));
  }
  memo_[key] = top();
}

void PickleMachine::recall(std::uint64_t key) {
  const auto found = memo_.find(key);
  if (found == memo_.end()) {
    fail(fmt::format("nothing was remembered as {}", key));
  }
  push(found->second);
}

void PickleMachine::push_integer(std::int64_t value) {
  push(Node{.kind = PickleKind::kInteger, .integer = value});
}

void PickleMachine::push_text(PickleKind kind, std::string_view text) {
  push(Node{.kind = kind, .text = text});
}

void PickleMachine::push_long(std::string_view little_endian) {
  if (little_endian.size() > sizeof(std::int64_t)) {
    return push(Node{.kind = PickleKind::kLongInteger, .text = little_endian});
  }
  const bool is_negative =
      !little_endian.empty() && static_cast<signed char>(little_endian.back()) < 0;
  std::int64_t value = is_negative ? -1 : 0;
  std::copy(little_endian.begin(), little_endian.end(), reinterpret_cast<char*>(&value));
  push_integer(value);
}

void PickleMachine::push_global(std::string_view module, std::string_view name) {
  push(Node{.kind = PickleKind::kClass, .text = module, .name = name});
}

void PickleMachine::push_tuple(std::size_t size) {
  std::vector<Index> items(size);
  for (std::size_t i = size; i-- > 0;) {
    items[i] = pop();
  }
  push(Node{.kind = PickleKind::kTuple, .children = std::move(items)});
}

void PickleMachine::append(const std::vector<Index>& items) {
  Node& list = node(top());
  if (list.kind == PickleKind::kObject) {
    return;  // a class that extends list: opaque like the rest of it
  }
  if (list.kind != PickleKind::kList) {
    fail(fmt::format("appends to {}", value(top()).described()));
  }
  list.children.insert(list.children.end(), items.begin(), items.end());
}

void PickleMachine::add_to_set(const std::vector<Index>& items) {
  Node& set = node(top());
  if (set.kind != PickleKind::kSet || set.is_wrapped) {
    fail(fmt::format("adds to {}", value(top()).described()));
  }
  set.children.insert(set.children.end(), items.begin(), items.end());
}

void PickleMachine::set_items(const std::vector<Index>& items) {
  Node& dict = node(top());
  if (dict.kind == PickleKind::kObject) {
    return;  // a class that extends dict
  }
  if (dict.kind != PickleKind::kDict || items.size() % 2 != 0) {
    fail(fmt::format("sets {} keys and values of {}", items.size(), value(top()).described()));
  }
  dict.children.insert(dict.children.end(), items.begin(), items.end());
}

void PickleMachine::build() {
  const Index attributes = pop();
  Node& object = node(top());
  if (object.kind == PickleKind::kDict) {
    return;  // attributes of an OrderedDict, such as a state_dict's _metadata: not its content
  }
  if (object.kind != PickleKind::kObject || object.children.size() != 2) {
    fail(fmt::format("gives attributes to {}", value(top()).described()));
  }
  object.children.push_back(attributes);
}

/// Readers differ on which of two equal keys counts, so no file may have two.
void PickleMachine::check_keys() const {
  for (const Node& dict : document_.nodes_) {
    if (dict.kind != PickleKind::kDict) {
      continue;
    }
    std::vector<std::pair<std::string_view, std::int64_t>> keys;  // an integer as ("", it)
    for (std::size_t i = 0; i < dict.children.size(); i += 2) {
      const Node& key = node(dict.children[i]);
      if (key.kind == PickleKind::kText || key.kind == PickleKind::kInteger) {
        keys.emplace_back(key.text, key.kind == PickleKind::kText ? -1 : key.integer);
      }
    }
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) {
      throw CheckpointError(fmt::format("damaged pickle: the key {} comes twice in one dict",
                                        twice->first.empty()
                                            ? fmt::to_string(twice->second)
                                            : fmt::format("\"{}\"", twice->first)));
    }
  }
}

}  // namespace dstrain
