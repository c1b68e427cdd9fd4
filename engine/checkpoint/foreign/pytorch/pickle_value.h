// What a pickle describes, as plain data. Nothing is executed to read one: known containers,
// numbers, texts and tensors become values; an object of any other class stays opaque, with its
// class's name, and only its use is an error.
//
//   const PickleDocument document = parse_pickle(bytes);
//   const std::int64_t steps = document.root().at("global_steps").integer("global_steps");
//
// Values are handles into the document, which must outlive them, as the bytes must outlive it. A
// pickle may contain itself (a list in itself), so walk it with a limit or for known keys only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/checkpoint/foreign/pytorch/torch_tensor.h"

namespace dstrain {

enum class PickleKind : std::uint8_t {
  kNone,
  kBool,
  kInteger,
  kLongInteger,  ///< of more than 64 bits
  kFloat,
  kText,
  kBytes,
  kList,
  kTuple,
  kSet,
  kDict,    ///< in the order of insertion; OrderedDict and defaultdict too
  kClass,   ///< a class, a function or a dtype, by name
  kObject,  ///< what a class that is not known here was called with
  kStorage,
  kTensor,
};

std::string_view name_of(PickleKind kind);

class PickleDocument;

class PickleValue {
 public:
  using Index = std::uint32_t;
  PickleValue(const PickleDocument& document, Index index) : document_(&document), index_(index) {}

  [[nodiscard]] PickleKind kind() const;
  [[nodiscard]] bool is_none() const { return kind() == PickleKind::kNone; }
  /// Whether both are the very same value, not only equal ones.
  [[nodiscard]] bool is(const PickleValue& other) const { return index_ == other.index_; }

  // Each throws CheckpointError if the value is something else; `what` names it in the sentence.
  [[nodiscard]] bool truth(std::string_view what) const;
  [[nodiscard]] std::int64_t integer(std::string_view what) const;  ///< numpy's scalars too
  [[nodiscard]] double number(std::string_view what) const;         ///< integers and floats
  [[nodiscard]] std::string_view text(std::string_view what) const;
  [[nodiscard]] std::string bytes(std::string_view what) const;
  [[nodiscard]] std::vector<PickleValue> items(std::string_view what) const;  ///< list, tuple, set
  [[nodiscard]] std::vector<std::pair<PickleValue, PickleValue>> entries(
      std::string_view what) const;
  [[nodiscard]] TorchTensor tensor(std::string_view what) const;

  /// A dict's value by a text key. `find` gives nothing for a missing key, `at` throws.
  [[nodiscard]] std::optional<PickleValue> find(std::string_view key) const;
  [[nodiscard]] PickleValue at(std::string_view key) const;

  /// "module.name" of a class, or of an object's class; "" for anything else.
  [[nodiscard]] std::string class_name() const;
  /// The arguments that an object's class was called with.
  [[nodiscard]] PickleValue arguments(std::string_view what) const;
  /// The attributes that an object was given, if any.
  [[nodiscard]] std::optional<PickleValue> attributes() const;

  /// A name for sentences: "a list", "an object of class a.B".
  [[nodiscard]] std::string described() const;

 private:
  friend class PickleDocument;
  void expect(bool fits, std::string_view what, std::string_view expected) const;
  [[nodiscard]] PickleValue child(std::size_t position) const;

  const PickleDocument* document_;
  Index index_;
};

/// A storage that a pickle's tensors lie in.
struct PickleStorage {
  std::string_view key;
  std::int64_t bytes = 0;
};

class PickleDocument {
 public:
  [[nodiscard]] PickleValue root() const { return {*this, root_}; }
  [[nodiscard]] std::size_t num_values() const { return nodes_.size(); }
  /// Each storage that the pickle names, as often as it does.
  [[nodiscard]] std::vector<PickleStorage> storages() const;

 private:
  friend class PickleValue;
  friend class PickleMachine;
  using Index = PickleValue::Index;

  /// One value. Which fields count depends on its kind:
  ///   bool, integer     integer                   float   real
  ///   text, bytes       text                      class   text (module), name
  ///   list, tuple, set  children; if is_wrapped, those of the only child (a set made from a list
  ///                     shares it, so that no call can multiply what a pickle holds); for bytes
  ///                     it says that the only child is a text with one byte per character
  ///   dict              children: key, value, …
  ///   object            children: class, arguments[, attributes]
  ///   storage           text (key), integer (bytes), dtype (nullptr if untyped)
  ///   tensor            children: storage, shape, strides; integer (offset), dtype
  struct Node {
    PickleKind kind = PickleKind::kNone;
    bool is_wrapped = false;
    std::int64_t integer = 0;
    double real = 0;
    std::string_view text;
    std::string_view name;
    const TorchDtype* dtype = nullptr;
    std::vector<Index> children;
  };

  std::vector<Node> nodes_;
  Index root_ = 0;
};

/// Reads one pickle of protocols 2 to 5. Throws CheckpointError with the byte and the opcode: for
/// anything that torch.save does not write, for damage, and for what would take more memory than
/// its own size explains. Depth costs no stack, as there is no recursion.
PickleDocument parse_pickle(std::span<const std::byte> bytes);

}  // namespace dstrain
