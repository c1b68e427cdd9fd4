#include "engine/checkpoint/foreign/pytorch/pickle_value.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

/// Returns characters U+0000 … U+00FF of UTF-8 text as one byte each, which is how Python 3 puts
/// bytes into a pickle of protocol 2.
std::string latin1_bytes(std::string_view text, std::string_view what) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      bytes.push_back(text[i]);
      continue;
    }
    const bool fits = (lead == 0xc2 || lead == 0xc3) && i + 1 < text.size() &&
                      (static_cast<unsigned char>(text[i + 1]) & 0xc0) == 0x80;
    if (!fits) {
      throw CheckpointError(
          fmt::format("{} are bytes written as a text that is not Latin-1", what));
    }
    ++i;
    bytes.push_back(static_cast<char>((lead << 6) | (static_cast<unsigned char>(text[i]) & 0x3f)));
  }
  return bytes;
}

template <typename T>
double number_in(const std::string& bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof(T));
  return static_cast<double>(value);
}

bool is_numpy_scalar(const PickleValue& value) {
  const std::string name = value.class_name();
  return value.kind() == PickleKind::kObject &&
         (name == "numpy._core.multiarray.scalar" || name == "numpy.core.multiarray.scalar");
}

struct NumpyScalar {
  std::string type;  ///< "f8", "i4", …
  std::string bytes;
};

NumpyScalar numpy_scalar(const PickleValue& value, std::string_view what) {
  const auto call = value.arguments(what).items(what);
  if (call.size() == 2 && call[0].class_name() == "numpy.dtype") {
    const auto type = call[0].arguments(what).items(what);
    const auto state = call[0].attributes();
    const bool is_little_endian =
        state && state->items(what).size() >= 2 && state->items(what)[1].text(what) != ">";
    if (!type.empty() && is_little_endian) {
      return {std::string(type[0].text(what)), call[1].bytes(what)};
    }
  }
  throw CheckpointError(fmt::format("{} is a numpy number of a kind that is not read", what));
}

std::optional<std::int64_t> integer_of(const NumpyScalar& scalar) {
  std::int64_t value = 0;
  const bool is_signed = scalar.type.starts_with('i');
  const bool is_unsigned = scalar.type.starts_with('u') || scalar.type == "b1";
  const std::size_t size = scalar.bytes.size();
  if ((!is_signed && !is_unsigned) || size == 0 || size > sizeof(value) ||
      (is_unsigned && size == sizeof(value) && static_cast<signed char>(scalar.bytes[7]) < 0)) {
    return std::nullopt;
  }
  if (is_signed && static_cast<signed char>(scalar.bytes.back()) < 0) {
    value = -1;
  }
  std::memcpy(&value, scalar.bytes.data(), size);
  return value;
}

std::optional<double> number_of(const NumpyScalar& scalar) {
  if (scalar.type == "f8" && scalar.bytes.size() == 8) {
    return number_in<double>(scalar.bytes);
  }
  if (scalar.type == "f4" && scalar.bytes.size() == 4) {
    return number_in<float>(scalar.bytes);
  }
  const auto integer = integer_of(scalar);
  return integer ? std::optional(static_cast<double>(*integer)) : std::nullopt;
}

}  // namespace

std::string_view name_of(PickleKind kind) {
  switch (kind) {
    case PickleKind::kNone:
      return "None";
    case PickleKind::kBool:
      return "a bool";
    case PickleKind::kInteger:
      return "an integer";
    case PickleKind::kLongInteger:
      return "an integer of more than 64 bits";
    case PickleKind::kFloat:
      return "a float";
    case PickleKind::kText:
      return "a text";
    case PickleKind::kBytes:
      return "bytes";
    case PickleKind::kList:
      return "a list";
    case PickleKind::kTuple:
      return "a tuple";
    case PickleKind::kSet:
      return "a set";
    case PickleKind::kDict:
      return "a dict";
    case PickleKind::kClass:
      return "the class or function";
    case PickleKind::kObject:
      return "an object of class";
    case PickleKind::kStorage:
      return "a storage";
    case PickleKind::kTensor:
      return "a tensor";
  }
  return "?";
}

PickleKind PickleValue::kind() const {
  check(index_ < document_->nodes_.size(), "value {} of a document of {}: it was forgotten", index_,
        document_->nodes_.size());
  return document_->nodes_[index_].kind;
}

PickleValue PickleValue::child(std::size_t position) const {
  return {*document_, document_->nodes_[index_].children[position]};
}

std::string PickleValue::class_name() const {
  const auto& node = document_->nodes_[index_];
  if (node.kind == PickleKind::kObject) {
    return child(0).class_name();
  }
  return node.kind == PickleKind::kClass ? fmt::format("{}.{}", node.text, node.name) : "";
}

std::string PickleValue::described() const {
  const std::string name = class_name();
  return name.empty() ? std::string(name_of(kind())) : fmt::format("{} {}", name_of(kind()), name);
}

void PickleValue::expect(bool fits, std::string_view what, std::string_view expected) const {
  if (!fits) {
    throw CheckpointError(fmt::format("{} is {}, expected {}", what, described(), expected));
  }
}

bool PickleValue::truth(std::string_view what) const {
  expect(kind() == PickleKind::kBool, what, "a bool");
  return document_->nodes_[index_].integer != 0;
}

std::int64_t PickleValue::integer(std::string_view what) const {
  if (is_numpy_scalar(*this)) {
    const auto value = integer_of(numpy_scalar(*this, what));
    expect(value.has_value(), what, "an integer");
    return *value;
  }
  expect(kind() == PickleKind::kInteger, what, "an integer");
  return document_->nodes_[index_].integer;
}

double PickleValue::number(std::string_view what) const {
  if (is_numpy_scalar(*this)) {
    const auto value = number_of(numpy_scalar(*this, what));
    expect(value.has_value(), what, "a number");
    return *value;
  }
  if (kind() == PickleKind::kInteger) {
    return static_cast<double>(document_->nodes_[index_].integer);
  }
  expect(kind() == PickleKind::kFloat, what, "a number");
  return document_->nodes_[index_].real;
}

std::string_view PickleValue::text(std::string_view what) const {
  expect(kind() == PickleKind::kText, what, "a text");
  return document_->nodes_[index_].text;
}

std::string PickleValue::bytes(std::string_view what) const {
  expect(kind() == PickleKind::kBytes, what, "bytes");
  const auto& node = document_->nodes_[index_];
  return node.is_wrapped ? latin1_bytes(child(0).text(what), what) : std::string(node.text);
}

std::vector<PickleValue> PickleValue::items(std::string_view what) const {
  expect(kind() == PickleKind::kList || kind() == PickleKind::kTuple || kind() == PickleKind::kSet,
         what, "a list, a tuple or a set");
  const auto& node = document_->nodes_[index_];
  if (node.is_wrapped) {
    return child(0).items(what);
  }
  std::vector<PickleValue> items;
  items.reserve(node.children.size());
  for (const Index index : node.children) {
    items.emplace_back(*document_, index);
  }
  return items;
}

std::vector<std::pair<PickleValue, PickleValue>> PickleValue::entries(std::string_view what) const {
  expect(kind() == PickleKind::kDict, what, "a dict");
  const auto& children = document_->nodes_[index_].children;
  std::vector<std::pair<PickleValue, PickleValue>> entries;
  entries.reserve(children.size() / 2);
  for (std::size_t i = 0; i < children.size(); i += 2) {
    entries.emplace_back(child(i), child(i + 1));
  }
  return entries;
}

std::optional<PickleValue> PickleValue::find(std::string_view key) const {
  expect(kind() == PickleKind::kDict, fmt::format("what should hold \"{}\"", key), "a dict");
  const auto& children = document_->nodes_[index_].children;
  for (std::size_t i = 0; i < children.size(); i += 2) {
    const auto& node = document_->nodes_[children[i]];
    if (node.kind == PickleKind::kText && node.text == key) {
      return child(i + 1);
    }
  }
  return std::nullopt;
}

PickleValue PickleValue::at(std::string_view key) const {
  const auto value = find(key);
  if (!value) {
    constexpr std::size_t kShownKeys = 12;
    std::string keys;
    const auto all = entries(key);
    for (std::size_t i = 0; i < std::min(all.size(), kShownKeys); ++i) {
      const bool is_text = all[i].first.kind() == PickleKind::kText;
      keys += fmt::format("{}\"{}\"", i == 0 ? "" : ", ",
                          is_text ? all[i].first.text("a key") : all[i].first.described());
    }
    throw CheckpointError(fmt::format("no \"{}\" in a dict with {} keys: {}{}", key, all.size(),
                                      keys, all.size() > kShownKeys ? ", …" : ""));
  }
  return *value;
}

PickleValue PickleValue::arguments(std::string_view what) const {
  expect(kind() == PickleKind::kObject, what, "an object");
  return child(1);
}

std::optional<PickleValue> PickleValue::attributes() const {
  if (kind() != PickleKind::kObject || document_->nodes_[index_].children.size() < 3) {
    return std::nullopt;
  }
  return child(2);
}

TorchTensor PickleValue::tensor(std::string_view what) const {
  expect(kind() == PickleKind::kTensor, what, "a tensor");
  const auto& node = document_->nodes_[index_];
  const auto& storage = document_->nodes_[node.children[0]];
  TorchTensor tensor{.dtype = node.dtype,
                     .shape = {},
                     .strides = {},
                     .offset_elements = node.integer,
                     .storage_key = storage.text,
                     .storage_bytes = storage.integer};
  for (const PickleValue& extent : child(1).items(what)) {
    tensor.shape.push_back(extent.integer(what));
  }
  for (const PickleValue& stride : child(2).items(what)) {
    tensor.strides.push_back(stride.integer(what));
  }
  return tensor;
}

std::vector<PickleStorage> PickleDocument::storages() const {
  std::vector<PickleStorage> storages;
  for (const Node& node : nodes_) {
    if (node.kind == PickleKind::kStorage) {
      storages.push_back({node.text, node.integer});
    }
  }
  return storages;
}

}  // namespace dstrain
