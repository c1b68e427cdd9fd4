// The functions and classes that a pickle may call. None is called: each is replaced by what it
// would return.

#include <string>

#include <fmt/format.h>

#include "engine/checkpoint/foreign/pytorch/pickle_machine.h"

namespace dstrain {
namespace {

constexpr std::size_t kMaxDims = 64;  // torch's own limit

bool is_any_of(std::string_view name, std::initializer_list<std::string_view> names) {
  for (const std::string_view candidate : names) {
    if (candidate == name) {
      return true;
    }
  }
  return false;
}

bool makes_plain_tensor(std::string_view function) {
  return is_any_of(function, {"torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3",
                              "torch._utils._rebuild_parameter"});
}

bool is_plain_tensor(std::string_view type) {
  return is_any_of(type, {"torch.Tensor", "torch.nn.parameter.Parameter"});
}

}  // namespace

void PickleMachine::call(Index callee, Index arguments) {
  if (node(callee).kind != PickleKind::kClass) {
    fail(fmt::format("calls {}, expected a class or a function", value(callee).described()));
  }
  if (node(arguments).kind != PickleKind::kTuple) {
    fail(fmt::format("arguments are {}, expected a tuple", value(arguments).described()));
  }
  if (!call_known(value(callee).class_name(), arguments)) {
    make_object(callee, arguments);
  }
}

void PickleMachine::make_object(Index callee, Index arguments) {
  if (node(callee).kind != PickleKind::kClass) {
    fail(fmt::format("calls {}, expected a class or a function", value(callee).described()));
  }
  push(Node{.kind = PickleKind::kObject, .children = {callee, arguments}});
}

/// Does what a known function would do. Returns false if the function is not known, or not with
/// such arguments.
bool PickleMachine::call_known(std::string_view function, Index arguments) {
  const std::vector<Index>& given = node(arguments).children;
  if (function == "torch._utils._rebuild_tensor_v2") {
    make_tensor(function, arguments, 7, /*has_dtype=*/false);
    return true;
  }
  if (function == "torch._utils._rebuild_tensor_v3") {
    make_tensor(function, arguments, 8, /*has_dtype=*/true);
    return true;
  }
  if (is_any_of(function, {"torch._utils._rebuild_parameter",
                           "torch._utils._rebuild_parameter_with_state"})) {
    if (given.empty() || node(given[0]).kind != PickleKind::kTensor) {
      fail(fmt::format("{} is not given a tensor", function));
    }
    push(given[0]);
    return true;
  }
  if (function == "torch._tensor._rebuild_from_type_v2" && given.size() == 4) {
    // (function, type, its arguments, attributes): a tensor that was given attributes.
    const std::string inner = value(given[0]).class_name();
    return node(given[0]).kind == PickleKind::kClass && makes_plain_tensor(inner) &&
           is_plain_tensor(value(given[1]).class_name()) &&
           node(given[2]).kind == PickleKind::kTuple && call_known(inner, given[2]);
  }
  if ((function == "collections.OrderedDict" && given.empty()) ||
      (function == "collections.defaultdict" && given.size() <= 1)) {
    push(Node{.kind = PickleKind::kDict});
    return true;
  }
  const bool takes_list = given.size() == 1 && node(given[0]).kind == PickleKind::kList;
  if (takes_list && is_any_of(function, {"__builtin__.set", "builtins.set", "__builtin__.frozenset",
                                         "builtins.frozenset"})) {
    push(Node{.kind = PickleKind::kSet, .is_wrapped = true, .children = {given[0]}});
    return true;
  }
  if (function == "torch.Size" && given.size() == 1 && node(given[0]).kind == PickleKind::kTuple) {
    push(given[0]);
    return true;
  }
  if (function == "_codecs.encode" && given.size() == 2 &&
      node(given[0]).kind == PickleKind::kText && node(given[1]).kind == PickleKind::kText &&
      is_any_of(node(given[1]).text, {"latin1", "latin-1"})) {
    push(Node{.kind = PickleKind::kBytes, .is_wrapped = true, .children = {given[0]}});
    return true;
  }
  if (is_any_of(function, {"__builtin__.bytes", "builtins.bytes"}) && given.empty()) {
    push(Node{.kind = PickleKind::kBytes});
    return true;
  }
  return false;
}

/// ("storage", class, key, device, number of elements): what torch.save writes for a storage.
void PickleMachine::load_storage(Index persistent_id) {
  const std::vector<Index>& id = node(persistent_id).children;
  if (node(persistent_id).kind != PickleKind::kTuple || id.size() != 5 ||
      node(id[0]).text != "storage" || node(id[1]).kind != PickleKind::kClass ||
      node(id[2]).kind != PickleKind::kText) {
    fail("a persistent id that is not a torch storage");
  }
  const Node& type = node(id[1]);
  const bool is_untyped = type.text == "torch.storage" && type.name == "UntypedStorage";
  const TorchDtype* dtype = type.text == "torch" ? torch_dtype_of_storage(type.name) : nullptr;
  if (!is_untyped && dtype == nullptr) {
    fail(fmt::format("no dtype is known for the storage {}", value(id[1]).class_name()));
  }
  const std::int64_t elements = size_in(id[4], "a storage's size");
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(elements, is_untyped ? 1 : dtype->bytes, &bytes)) {
    fail(fmt::format("a storage of {} elements", elements));
  }
  push(Node{
      .kind = PickleKind::kStorage, .integer = bytes, .text = node(id[2]).text, .dtype = dtype});
}

/// (storage, offset, shape, strides, …[, dtype]), checked: every element lies in the storage.
void PickleMachine::make_tensor(std::string_view function,
                                Index arguments,
                                std::size_t most,
                                bool has_dtype) {
  const std::vector<Index>& given = node(arguments).children;
  if (given.size() + 1 < most || given.size() > most ||
      node(given[0]).kind != PickleKind::kStorage || node(given[2]).kind != PickleKind::kTuple ||
      node(given[3]).kind != PickleKind::kTuple) {
    fail(fmt::format("{} with arguments that are not a storage, an offset, a shape and strides",
                     function));
  }
  const Node& storage = node(given[0]);
  const TorchDtype* dtype = storage.dtype;
  if (has_dtype) {
    const Node& type = node(given[6]);
    dtype = type.kind == PickleKind::kClass && type.text == "torch" ? torch_dtype_named(type.name)
                                                                    : nullptr;
    if (dtype == nullptr) {
      fail(fmt::format("a tensor of dtype {}, which is not known", value(given[6]).described()));
    }
  }
  if (dtype == nullptr) {
    fail("a tensor whose storage has no dtype");
  }
  const std::vector<Index>& shape = node(given[2]).children;
  const std::vector<Index>& strides = node(given[3]).children;
  if (shape.size() != strides.size() || shape.size() > kMaxDims) {
    fail(fmt::format("a tensor of {} dims with {} strides", shape.size(), strides.size()));
  }
  const std::int64_t offset = size_in(given[1], "a tensor's offset");
  const std::int64_t storage_elements = storage.integer / dtype->bytes;
  std::int64_t elements = 1;
  std::int64_t last = offset;
  bool overflows = false;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    const std::int64_t extent = size_in(shape[dim], "an extent");
    std::int64_t reach = 0;
    overflows |= __builtin_mul_overflow(elements, extent, &elements);
    overflows |=
        extent > 0 && __builtin_mul_overflow(extent - 1, size_in(strides[dim], "a stride"), &reach);
    overflows |= __builtin_add_overflow(last, reach, &last);
  }
  if (overflows) {
    fail("a tensor with more elements than can be counted");
  }
  if (elements > 0 && last >= storage_elements) {
    fail(fmt::format("a tensor that reaches element {} of storage \"{}\", which has {}", last,
                     storage.text, storage_elements));
  }
  push(Node{.kind = PickleKind::kTensor,
            .integer = offset,
            .dtype = dtype,
            .children = {given[0], given[2], given[3]}});
}

std::int64_t PickleMachine::size_in(Index index, std::string_view what) const {
  if (node(index).kind != PickleKind::kInteger || node(index).integer < 0) {
    fail(fmt::format(
        "{} is {}{}, expected a size", what, value(index).described(),
        node(index).kind == PickleKind::kInteger ? fmt::format(" {}", node(index).integer) : ""));
  }
  return node(index).integer;
}

}  // namespace dstrain
