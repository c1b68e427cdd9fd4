// PickleMachine: the stack machine whose program a pickle is, cut down to what torch.save writes.
// A call of a known function or class makes plain data, of an unknown one an opaque object; no
// call runs anything. Each opcode makes one value at most, and texts stay where they are, so a
// pickle takes memory in proportion to its own bytes.
//
// An inner part of parse_pickle (pickle_value.h): pickle_machine.cpp reads opcodes,
// pickle_containers.cpp keeps the stack and fills containers, pickle_calls.cpp knows the functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/checkpoint/foreign/pytorch/pickle_value.h"

namespace dstrain {

class PickleMachine {
 public:
  explicit PickleMachine(std::span<const std::byte> bytes) : bytes_(bytes) {}
  PickleDocument run();

 private:
  using Index = PickleValue::Index;
  using Node = PickleDocument::Node;

  void step(std::uint8_t opcode);
  void check_keys() const;

  // Take what follows an opcode.
  std::string_view take(std::uint64_t size);
  template <typename T>
  T take_number();
  std::string_view take_line();

  // The stack.
  void push(Index index) { stack_.push_back(index); }
  void push(Node node) { stack_.push_back(make(std::move(node))); }
  Index make(Node node);
  Index pop();
  Index top() const;
  std::vector<Index> pop_to_mark();
  void remember(std::uint64_t key);
  void recall(std::uint64_t key);

  // Each does to the stack and the values what an opcode says.
  void push_integer(std::int64_t value);
  void push_text(PickleKind kind, std::string_view text);
  void push_long(std::string_view little_endian);
  void push_global(std::string_view module, std::string_view name);
  void push_tuple(std::size_t size);
  void append(const std::vector<Index>& items);
  void add_to_set(const std::vector<Index>& items);
  void set_items(const std::vector<Index>& items);
  void build();

  // Calls (pickle_calls.cpp).
  void call(Index callee, Index arguments);
  bool call_known(std::string_view function, Index arguments);
  void load_storage(Index persistent_id);
  void make_tensor(std::string_view function, Index arguments, std::size_t most, bool has_dtype);
  void make_object(Index callee, Index arguments);
  std::int64_t size_in(Index index, std::string_view what) const;

  Node& node(Index index) { return document_.nodes_[index]; }
  const Node& node(Index index) const { return document_.nodes_[index]; }
  PickleValue value(Index index) const { return {document_, index}; }
  [[noreturn]] void fail(const std::string& what) const;

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  std::size_t opcode_at_ = 0;
  std::uint8_t opcode_ = 0;
  bool is_done_ = false;
  PickleDocument document_;
  std::vector<Index> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, Index> memo_;
};

}  // namespace dstrain
