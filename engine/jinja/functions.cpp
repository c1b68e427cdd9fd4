// Jinja's tests, and the functions that templates call by name.
#include "engine/jinja/functions.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <map>

#include <fmt/format.h>

#include "engine/jinja/operators.h"
#include "engine/jinja/text_methods.h"

namespace dstrain::jinja {
namespace {

const Value& only(const Arguments& arguments) {
  if (arguments.positional.size() != 1) throw TemplateError("a test needs one value to test with");
  return arguments.positional[0];
}

std::int64_t whole_of(const Value& value) {
  if (!value.is_whole()) {
    throw TemplateError(fmt::format("{}, expected an integer", value.kind()));
  }
  return value.whole();
}

bool is_equal(const Value& value, const Arguments& arguments) {
  return equal(value, only(arguments));
}
bool is_unequal(const Value& value, const Arguments& arguments) {
  return !equal(value, only(arguments));
}
bool is_less(const Value& value, const Arguments& arguments) {
  return compare(value, only(arguments)) < 0;
}
bool is_not_more(const Value& value, const Arguments& arguments) {
  return compare(value, only(arguments)) <= 0;
}
bool is_more(const Value& value, const Arguments& arguments) {
  return compare(value, only(arguments)) > 0;
}
bool is_not_less(const Value& value, const Arguments& arguments) {
  return compare(value, only(arguments)) >= 0;
}
bool is_iterable(const Value& value, const Arguments& /*arguments*/) {
  return value.is_sequence() || value.is_dict() || value.is_string() || value.is_undefined();
}

struct NamedTest {
  std::string_view name;
  Test test;
};

constexpr NamedTest kTests[] = {
    {"!=", is_unequal},
    {"<", is_less},
    {"<=", is_not_more},
    {"==", is_equal},
    {">", is_more},
    {">=", is_not_less},
    {"boolean", [](const Value& value, const Arguments&) { return value.is_bool(); }},
    {"callable",
     [](const Value& value, const Arguments&) {
       return value.is_object() && value.object().is_callable();
     }},
    {"defined", [](const Value& value, const Arguments&) { return !value.is_undefined(); }},
    {"divisibleby",
     [](const Value& value, const Arguments& arguments) {
       return equal(remainder(value, only(arguments)), 0);
     }},
    {"eq", is_equal},
    {"equalto", is_equal},
    {"even", [](const Value& value, const Arguments&) { return whole_of(value) % 2 == 0; }},
    {"false",
     [](const Value& value, const Arguments&) { return value.is_bool() && !value.boolean(); }},
    {"filter",
     [](const Value& value, const Arguments&) { return find_filter(value.text()) != nullptr; }},
    {"float", [](const Value& value, const Arguments&) { return value.is_float(); }},
    {"ge", is_not_less},
    {"greaterthan", is_more},
    {"gt", is_more},
    {"in", [](const Value& value,
              const Arguments& arguments) { return contains(only(arguments), value); }},
    {"integer", [](const Value& value, const Arguments&) { return value.is_integer(); }},
    {"iterable", is_iterable},
    {"le", is_not_more},
    {"lessthan", is_less},
    {"lower",
     [](const Value& value, const Arguments&) {
       return lower(value.text()) == value.text() && upper(value.text()) != value.text();
     }},
    {"lt", is_less},
    {"mapping", [](const Value& value, const Arguments&) { return value.is_dict(); }},
    {"ne", is_unequal},
    {"none", [](const Value& value, const Arguments&) { return value.is_none(); }},
    {"number", [](const Value& value, const Arguments&) { return value.is_number(); }},
    {"odd", [](const Value& value, const Arguments&) { return whole_of(value) % 2 != 0; }},
    {"sameas",
     [](const Value& value, const Arguments& arguments) { return value.is_same(only(arguments)); }},
    // A mapping is a sequence too, by Jinja's test: it has a length and members.
    {"sequence", is_iterable},
    {"string", [](const Value& value, const Arguments&) { return value.is_string(); }},
    {"test",
     [](const Value& value, const Arguments&) { return find_test(value.text()) != nullptr; }},
    {"true",
     [](const Value& value, const Arguments&) { return value.is_bool() && value.boolean(); }},
    {"undefined", [](const Value& value, const Arguments&) { return value.is_undefined(); }},
    {"upper",
     [](const Value& value, const Arguments&) {
       return upper(value.text()) == value.text() && lower(value.text()) != value.text();
     }},
};

class Function final : public Object {
 public:
  Function(std::string_view name, Value (*body)(const Arguments&)) : name_(name), call_(body) {}
  [[nodiscard]] std::string describe() const override {
    return fmt::format("the function {}", name_);
  }
  [[nodiscard]] bool is_callable() const override { return true; }
  Value call(const Arguments& arguments) override { return call_(arguments); }

 private:
  std::string_view name_;
  Value (*call_)(const Arguments&);
};

/// What namespace() makes: names that may be set from inside loops.
class Namespace final : public Object {
 public:
  [[nodiscard]] std::string describe() const override { return "a namespace"; }
  [[nodiscard]] std::optional<Value> attribute(std::string_view name) const override {
    const auto found = names_.find(name);
    return found != names_.end() ? std::optional(found->second) : std::nullopt;
  }
  void set(const std::string& name, Value value) {
    names_.insert_or_assign(name, std::move(value));
  }

 private:
  std::map<std::string, Value, std::less<>> names_;
};

/// The members of dict(…) and namespace(…): of dictionaries or pairs, then those given by name.
Members members_of(const Arguments& arguments) {
  Members members;
  for (const Value& given : arguments.positional) {
    if (given.is_dict()) {
      members.insert(members.end(), given.members().begin(), given.members().end());
      continue;
    }
    for (const Value& pair : given.elements()) {
      if (!pair.is_sequence() || pair.items().size() != 2) {
        throw TemplateError(fmt::format("a dictionary of {}, expected pairs", pair.kind()));
      }
      members.emplace_back(pair.items()[0], pair.items()[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) {
    members.emplace_back(name, value);
  }
  return members;
}

Value make_namespace(const Arguments& arguments) {
  auto space = std::make_shared<Namespace>();
  for (const auto& [name, value] : members_of(arguments)) {
    space->set(name.text(), value);
  }
  return std::shared_ptr<Object>(std::move(space));
}

Value range(const Arguments& arguments) {
  constexpr std::int64_t kMost = 100000;  // as Jinja's sandbox
  const Bound bound("range", arguments, {"start", "stop", "step"});
  const bool has_stop = bound.find(1) != nullptr;
  const std::int64_t begin = has_stop ? whole_of(bound.required(0)) : 0;
  const std::int64_t end = whole_of(bound.required(has_stop ? 1 : 0));
  const std::int64_t step = bound.integer_or(2, 1);
  if (step == 0) throw TemplateError("range() in steps of 0");
  Items items;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    if (static_cast<std::int64_t>(items.size()) == kMost) {
      throw TemplateError(fmt::format("range() of more than {} numbers", kMost));
    }
    items.emplace_back(i);
  }
  return Value::list(std::move(items));
}

Value raise_exception(const Arguments& arguments) {
  const Bound bound("raise_exception", arguments, {"message"});
  throw TemplateRefusal(bound.required(0).text());
}

Value strftime_now(const Arguments& arguments) {
  const Bound bound("strftime_now", arguments, {"format"});
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 512> text{};
  const std::string format = bound.required(0).text();
  return std::string(text.data(), std::strftime(text.data(), text.size(), format.c_str(), &local));
}

/// A function with a state: `first_then` is "" at its first call, then its separator.
class Joiner final : public Object {
 public:
  explicit Joiner(std::string separator) : separator_(std::move(separator)) {}
  [[nodiscard]] std::string describe() const override { return "a joiner"; }
  [[nodiscard]] bool is_callable() const override { return true; }
  Value call(const Arguments& /*arguments*/) override {
    return std::exchange(is_used_, true) ? Value(separator_) : Value("");
  }

 private:
  std::string separator_;
  bool is_used_ = false;
};

class Cycler final : public Object, public std::enable_shared_from_this<Cycler> {
 public:
  explicit Cycler(Items items) : items_(std::move(items)) {
    if (items_.empty()) throw TemplateError("cycler() of nothing");
  }
  [[nodiscard]] std::string describe() const override { return "a cycler"; }
  [[nodiscard]] std::optional<Value> attribute(std::string_view name) const override {
    if (name == "current") return items_[at_];
    if (name == "next" || name == "reset") {
      return Value(std::shared_ptr<Object>(std::make_shared<Step>(
          std::const_pointer_cast<Cycler>(shared_from_this()), name == "next")));
    }
    return std::nullopt;
  }

 private:
  class Step final : public Object {
   public:
    Step(std::shared_ptr<Cycler> cycler, bool moves) : cycler_(std::move(cycler)), moves_(moves) {}
    [[nodiscard]] std::string describe() const override { return "a method of a cycler"; }
    [[nodiscard]] bool is_callable() const override { return true; }
    Value call(const Arguments& /*arguments*/) override {
      if (!moves_) {
        cycler_->at_ = 0;
        return {};
      }
      const Value now = cycler_->items_[cycler_->at_];
      cycler_->at_ = (cycler_->at_ + 1) % cycler_->items_.size();
      return now;
    }

   private:
    std::shared_ptr<Cycler> cycler_;
    bool moves_;
  };
  Items items_;
  std::size_t at_ = 0;
};

}  // namespace

Test find_test(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kTests), std::end(kTests),
                                         [&](const NamedTest& test) { return test.name == name; });
  return found == std::end(kTests) ? nullptr : found->test;
}

Value make_function(std::string_view name, Value (*call)(const Arguments&)) {
  return std::shared_ptr<Object>(std::make_shared<Function>(name, call));
}

const Value* find_function(std::string_view name) {
  static const std::pair<std::string_view, Value> kFunctions[] = {
      {"namespace", make_function("namespace", make_namespace)},
      {"range", make_function("range", range)},
      {"raise_exception", make_function("raise_exception", raise_exception)},
      {"strftime_now", make_function("strftime_now", strftime_now)},
      {"dict", make_function("dict",
                             [](const Arguments& arguments) -> Value {
                               return Value::dict(members_of(arguments));
                             })},
      {"joiner", make_function("joiner",
                               [](const Arguments& arguments) -> Value {
                                 const Bound bound("joiner", arguments, {"sep"});
                                 return std::shared_ptr<Object>(
                                     std::make_shared<Joiner>(bound.string_or(0, ", ")));
                               })},
      {"cycler", make_function("cycler",
                               [](const Arguments& arguments) -> Value {
                                 return std::shared_ptr<Object>(
                                     std::make_shared<Cycler>(arguments.positional));
                               })},
  };
  const auto* const found =
      std::find_if(std::begin(kFunctions), std::end(kFunctions),
                   [&](const auto& function) { return function.first == name; });
  return found == std::end(kFunctions) ? nullptr : &found->second;
}

void set_attribute(const Value& value, const std::string& name, Value to) {
  auto* const space = value.is_object() ? dynamic_cast<Namespace*>(&value.object()) : nullptr;
  if (space == nullptr) {
    throw TemplateError(
        fmt::format("an attribute of {} is set, expected a namespace's", value.kind()));
  }
  space->set(name, std::move(to));
}

}  // namespace dstrain::jinja
