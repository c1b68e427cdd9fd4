#include "engine/checkpoint/foreign/pytorch/pickle_machine.h"

#include <bit>
#include <utility>

#include <fmt/format.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/foreign/pytorch/little_endian.h"
#include "engine/checkpoint/foreign/pytorch/pickle_opcodes.h"

namespace dstrain {
namespace {

constexpr int kMaxProtocol = 5;

}  // namespace

PickleDocument parse_pickle(std::span<const std::byte> bytes) {
  return PickleMachine(bytes).run();
}

PickleDocument PickleMachine::run() {
  while (!is_done_) {
    opcode_at_ = at_;
    opcode_ = 0;
    if (at_ == bytes_.size()) {
      fail("it was cut short");
    }
    opcode_ = take_number<std::uint8_t>();
    if (opcode_at_ == 0 && opcode_ != 0x80) {
      fail("a pickle of protocol 2 or later begins with PROTO");
    }
    step(opcode_);
  }
  if (at_ != bytes_.size()) {
    fail(fmt::format("{} bytes follow its end", bytes_.size() - at_));
  }
  check_keys();
  return std::move(document_);
}

void PickleMachine::fail(const std::string& what) const {
  const std::string_view name = pickle_opcode_name(opcode_);
  throw CheckpointError(fmt::format("damaged pickle: at byte {}{}{}: {}", opcode_at_,
                                    name.empty() ? "" : ", ", name, what));
}

void PickleMachine::step(std::uint8_t opcode) {
  switch (opcode) {
    case 0x80: {  // PROTO
      const int protocol = take_number<std::uint8_t>();
      if (protocol < 2 || protocol > kMaxProtocol) {
        fail(fmt::format("protocol {}, expected 2 to {}", protocol, kMaxProtocol));
      }
      return;
    }
    case 0x95: {  // FRAME: how much to read at once, of no use here
      const auto size = take_number<std::uint64_t>();
      if (size > bytes_.size() - at_) {
        fail(fmt::format("{} bytes, {} are left", size, bytes_.size() - at_));
      }
      return;
    }
    case '.':
      document_.root_ = pop();
      if (!stack_.empty() || !marks_.empty()) {
        fail("more than one value is left");
      }
      is_done_ = true;
      return;

    case '(':
      marks_.push_back(stack_.size());
      return;
    case '0':
      (void)pop();
      return;
    case '1':
      (void)pop_to_mark();
      return;
    case '2':
      return push(top());
    case 'q':
      return remember(take_number<std::uint8_t>());
    case 'r':
      return remember(take_number<std::uint32_t>());
    case 0x94:
      return remember(memo_.size());
    case 'h':
      return recall(take_number<std::uint8_t>());
    case 'j':
      return recall(take_number<std::uint32_t>());

    case 'N':
      return push(Node{.kind = PickleKind::kNone});
    case 0x88:
    case 0x89:
      return push(Node{.kind = PickleKind::kBool, .integer = opcode == 0x88 ? 1 : 0});
    case 'K':
      return push_integer(take_number<std::uint8_t>());
    case 'M':
      return push_integer(take_number<std::uint16_t>());
    case 'J':
      return push_integer(take_number<std::int32_t>());
    case 0x8a:
      return push_long(take(take_number<std::uint8_t>()));
    case 0x8b:
      return push_long(take(take_number<std::uint32_t>()));
    case 'G':  // the one big-endian number of the format
      return push(
          Node{.kind = PickleKind::kFloat,
               .real = std::bit_cast<double>(__builtin_bswap64(take_number<std::uint64_t>()))});
    case 0x8c:
      return push_text(PickleKind::kText, take(take_number<std::uint8_t>()));
    case 'X':
      return push_text(PickleKind::kText, take(take_number<std::uint32_t>()));
    case 0x8d:
      return push_text(PickleKind::kText, take(take_number<std::uint64_t>()));
    case 'C':
      return push_text(PickleKind::kBytes, take(take_number<std::uint8_t>()));
    case 'B':
      return push_text(PickleKind::kBytes, take(take_number<std::uint32_t>()));
    case 0x8e:
      return push_text(PickleKind::kBytes, take(take_number<std::uint64_t>()));

    case ']':
      return push(Node{.kind = PickleKind::kList});
    case 'a':
      return append({pop()});
    case 'e':
      return append(pop_to_mark());
    case '}':
      return push(Node{.kind = PickleKind::kDict});
    case 's': {
      const Index item = pop();
      const Index key = pop();
      return set_items({key, item});
    }
    case 'u':
      return set_items(pop_to_mark());
    case 0x8f:
      return push(Node{.kind = PickleKind::kSet});
    case 0x90:
      return add_to_set(pop_to_mark());
    case 0x91:
      return push(Node{.kind = PickleKind::kSet, .children = pop_to_mark()});
    case ')':
      return push_tuple(0);
    case 0x85:
      return push_tuple(1);
    case 0x86:
      return push_tuple(2);
    case 0x87:
      return push_tuple(3);
    case 't':
      return push(Node{.kind = PickleKind::kTuple, .children = pop_to_mark()});

    case 'c': {
      const std::string_view module = take_line();
      return push_global(module, take_line());
    }
    case 0x93: {
      const std::string_view name = value(pop()).text("a class's name");
      return push_global(value(pop()).text("a module's name"), name);
    }
    case 'R':
    case 0x81: {  // REDUCE calls, NEWOBJ makes an object: the same here
      const Index arguments = pop();
      return call(pop(), arguments);
    }
    case 0x92: {
      (void)pop();  // named arguments, which torch.save's own classes do not have
      const Index arguments = pop();
      return make_object(pop(), arguments);
    }
    case 'b':
      return build();
    case 'Q':
      return load_storage(pop());
    default:
      if (pickle_opcode_name(opcode).empty()) {
        fail(fmt::format("there is no opcode 0x{:02x}", opcode));
      }
      fail("torch.save does not write this opcode, so it is not read");
  }
}

std::string_view PickleMachine::take(std::uint64_t size) {
  if (size > bytes_.size() - at_) {
    fail(fmt::format("{} bytes, {} are left", size, bytes_.size() - at_));
  }
  const std::string_view taken(reinterpret_cast<const char*>(bytes_.data()) + at_, size);
  at_ += size;
  return taken;
}

template <typename T>
T PickleMachine::take_number() {
  return load_at<T>(std::as_bytes(std::span(take(sizeof(T)))), 0);
}

std::string_view PickleMachine::take_line() {
  const std::string_view rest(reinterpret_cast<const char*>(bytes_.data()) + at_,
                              bytes_.size() - at_);
  const std::size_t end = rest.find('\n');
  if (end == std::string_view::npos) {
    fail("a name without its end");
  }
  at_ += end + 1;
  return rest.substr(0, end);
}

}  // namespace dstrain
