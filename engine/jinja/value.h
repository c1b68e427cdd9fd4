// Value: what an expression of a template is, with Python's kinds and Python's behaviour, since
// templates are written against Python. Lists, tuples and dictionaries never change once they are
// made, as in Jinja's immutable sandbox; a namespace does. Copies share what they hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace dstrain::jinja {

/// A template that is not one, or that fails; what() does not name the file.
class TemplateError : public std::runtime_error {
 public:
  explicit TemplateError(const std::string& message) : std::runtime_error(message) {}
};

/// What a template itself refuses, by raise_exception(what()).
class TemplateRefusal : public TemplateError {
 public:
  using TemplateError::TemplateError;
};

class Object;
class Value;
using Items = std::vector<Value>;
using Members = std::vector<std::pair<Value, Value>>;

/// A name or member that is not there; may be tested, printed and gone through, as nothing.
struct Undefined {
  std::shared_ptr<const std::string> what;  ///< "'tools' is undefined"
};
struct None {};

class Value {
 public:
  Value() = default;                                ///< None
  Value(bool value) : held_(value) {}               // NOLINT: conversions are meant
  Value(std::int64_t value) : held_(value) {}       // NOLINT
  Value(int value) : held_(std::int64_t{value}) {}  // NOLINT
  Value(double value) : held_(value) {}             // NOLINT
  Value(std::string value)                          // NOLINT
      : held_(std::make_shared<const std::string>(std::move(value))) {}
  Value(std::string_view value) : Value(std::string(value)) {}         // NOLINT
  Value(const char* value) : Value(std::string(value)) {}              // NOLINT
  Value(std::shared_ptr<Object> object) : held_(std::move(object)) {}  // NOLINT
  static Value undefined(std::string what);
  static Value list(Items items);
  static Value tuple(Items items);
  /// Members keep their order; of equal keys the last one's value counts.
  static Value dict(Members members);

  [[nodiscard]] bool is_undefined() const { return std::holds_alternative<Undefined>(held_); }
  [[nodiscard]] bool is_none() const { return std::holds_alternative<None>(held_); }
  [[nodiscard]] bool is_bool() const { return std::holds_alternative<bool>(held_); }
  /// An integer; Python's truth values are integers too, and are not meant here.
  [[nodiscard]] bool is_integer() const { return std::holds_alternative<std::int64_t>(held_); }
  [[nodiscard]] bool is_float() const { return std::holds_alternative<double>(held_); }
  [[nodiscard]] bool is_number() const { return is_bool() || is_integer() || is_float(); }
  [[nodiscard]] bool is_string() const { return std::holds_alternative<Text>(held_); }
  [[nodiscard]] bool is_list() const { return std::holds_alternative<List>(held_); }
  [[nodiscard]] bool is_tuple() const { return std::holds_alternative<Tuple>(held_); }
  [[nodiscard]] bool is_sequence() const { return is_list() || is_tuple(); }
  [[nodiscard]] bool is_dict() const { return std::holds_alternative<Dict>(held_); }
  [[nodiscard]] bool is_object() const {
    return std::holds_alternative<std::shared_ptr<Object>>(held_);
  }

  /// Each of these may be asked of its kind alone.
  [[nodiscard]] bool boolean() const { return std::get<bool>(held_); }
  [[nodiscard]] std::int64_t integer() const { return std::get<std::int64_t>(held_); }
  [[nodiscard]] const std::string& string() const { return *std::get<Text>(held_); }
  [[nodiscard]] const Items& items() const {
    return is_list() ? *std::get<List>(held_).items : *std::get<Tuple>(held_).items;
  }
  [[nodiscard]] const Members& members() const { return *std::get<Dict>(held_).members; }
  [[nodiscard]] Object& object() const { return *std::get<std::shared_ptr<Object>>(held_); }
  [[nodiscard]] const std::string& why_undefined() const {
    return *std::get<Undefined>(held_).what;
  }
  /// Of an integer or a truth value.
  [[nodiscard]] std::int64_t whole() const { return is_bool() ? boolean() : integer(); }
  [[nodiscard]] bool is_whole() const { return is_bool() || is_integer(); }
  /// Of any number.
  [[nodiscard]] double real() const {
    return is_float() ? std::get<double>(held_) : static_cast<double>(whole());
  }

  [[nodiscard]] bool truth() const;
  /// The member of a dictionary, or nullptr.
  [[nodiscard]] const Value* find(std::string_view key) const;
  [[nodiscard]] const Value* find(const Value& key) const;
  /// As Python's str() and repr() write it.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::string repr() const;
  /// "a string", "None", "undefined": for errors.
  [[nodiscard]] std::string kind() const;
  /// What a `for` goes through: elements, keys, or characters. Throws TemplateError.
  [[nodiscard]] Items elements() const;
  /// Whether both are the same object, as Python's `is`.
  [[nodiscard]] bool is_same(const Value& other) const;

 private:
  using Text = std::shared_ptr<const std::string>;
  struct List {
    std::shared_ptr<const Items> items;
  };
  struct Tuple {
    std::shared_ptr<const Items> items;
  };
  struct Dict {
    std::shared_ptr<const Members> members;
  };
  std::variant<None,
               Undefined,
               bool,
               std::int64_t,
               double,
               Text,
               List,
               Tuple,
               Dict,
               std::shared_ptr<Object>>
      held_;
};

/// Python's `==`.
[[nodiscard]] bool equal(const Value& a, const Value& b);

/// The arguments of a call.
struct Arguments {
  Items positional{};
  std::vector<std::pair<std::string, Value>> named{};
};

/// What has attributes of its own, or can be called: functions, macros, namespaces, `loop`.
class Object {
 public:
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;

  [[nodiscard]] virtual std::string describe() const = 0;
  [[nodiscard]] virtual bool is_callable() const { return false; }
  virtual Value call(const Arguments& /*arguments*/) {
    throw TemplateError(describe() + " cannot be called");
  }
  [[nodiscard]] virtual std::optional<Value> attribute(std::string_view /*name*/) const {
    return std::nullopt;
  }
};

/// Arguments by the names of a function's parameters: each is given by its place or by its name.
/// Throws TemplateError where one is given twice, is not known, or there are too many.
class Bound {
 public:
  Bound(std::string_view function,
        const Arguments& arguments,
        std::initializer_list<std::string_view> parameters);

  /// The argument at that place of `parameters`, or nullptr.
  [[nodiscard]] const Value* find(std::size_t place) const { return values_[place]; }
  /// Throws TemplateError where it is not given.
  [[nodiscard]] const Value& required(std::size_t place) const;
  [[nodiscard]] Value value_or(std::size_t place, Value absent) const {
    return values_[place] != nullptr ? *values_[place] : std::move(absent);
  }
  /// Throws TemplateError where it is not of the kind.
  [[nodiscard]] std::int64_t integer_or(std::size_t place, std::int64_t absent) const;
  [[nodiscard]] std::string string_or(std::size_t place, std::string_view absent) const;

 private:
  std::string function_;
  std::vector<std::string_view> parameters_;
  std::vector<const Value*> values_;
};

}  // namespace dstrain::jinja
