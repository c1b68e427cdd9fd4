#include "engine/jinja/program.h"

#include <algorithm>

#include <fmt/format.h>

#include "engine/jinja/functions.h"
#include "engine/jinja/operators.h"

namespace dstrain::jinja {
namespace {

[[noreturn]] void refuse_at(int line, std::string_view what) {
  throw TemplateError(fmt::format("line {}: {}", line, what));
}

class Constant final : public Expression {
 public:
  Constant(int line, Value value) : Expression(line), value_(std::move(value)) {}

 private:
  [[nodiscard]] Value evaluate(Frame& /*frame*/) const override { return value_; }
  Value value_;
};

class Name final : public Expression {
 public:
  Name(int line, std::string name) : Expression(line), name_(std::move(name)) {}

 private:
  [[nodiscard]] Value evaluate(Frame& frame) const override {
    if (const Value* const found = frame.scope->find(name_)) return *found;
    if (const Value* const found = find_function(name_)) return *found;
    return Value::undefined(fmt::format("\"{}\" is undefined", name_));
  }
  std::string name_;
};

class ListOf final : public Expression {
 public:
  ListOf(int line, std::vector<ExpressionPtr> items, bool is_tuple)
      : Expression(line), items_(std::move(items)), is_tuple_(is_tuple) {}

 private:
  [[nodiscard]] Value evaluate(Frame& frame) const override {
    Items values;
    for (const auto& item : items_) {
      values.push_back(item->value(frame));
    }
    return is_tuple_ ? Value::tuple(std::move(values)) : Value::list(std::move(values));
  }
  std::vector<ExpressionPtr> items_;
  bool is_tuple_;
};

class DictOf final : public Expression {
 public:
  DictOf(int line, std::vector<std::pair<ExpressionPtr, ExpressionPtr>> members)
      : Expression(line), members_(std::move(members)) {}

 private:
  [[nodiscard]] Value evaluate(Frame& frame) const override {
    Members values;
    for (const auto& [key, member] : members_) {
      Value name = key->value(frame);
      values.emplace_back(std::move(name), member->value(frame));
    }
    return Value::dict(std::move(values));
  }
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> members_;
};

class Operation final : public Expression {
 public:
  Operation(int line, Operator operation, ExpressionPtr a, ExpressionPtr b)
      : Expression(line), operation_(operation), a_(std::move(a)), b_(std::move(b)) {}

 private:
  [[nodiscard]] Value evaluate(Frame& frame) const override {
    const Value a = a_->value(frame);
    if (operation_ == Operator::kAnd) return a.truth() ? b_->value(frame) : a;
    if (operation_ == Operator::kOr) return a.truth() ? a : b_->value(frame);
    const Value b = b_->value(frame);
    switch (operation_) {
      case Operator::kAdd:
        return add(a, b);
      case Operator::kSubtract:
        return subtract(a, b);
      case Operator::kMultiply:
        return multiply(a, b);
      case Operator::kDivide:
        return divide(a, b);
      case Operator::kDivideWhole:
        return divide_whole(a, b);
      case Operator::kRemainder:
        return remainder(a, b);
      case Operator::kPower:
        return power(a, b);
      default: {
        std::string joined = a.text() + b.text();
        check_length(joined.size());
        return joined;
      }
    }
  }
  Operator operation_;
  ExpressionPtr a_;
  ExpressionPtr b_;
};

class Negation final : public Expression {
 public:
  Negation(int line, ExpressionPtr a) : Expression(line), a_(std::move(a)) {}

 private:
  [[nodiscard]] Value evaluate(Frame& frame) const override { return negate(a_->value(frame)); }
  ExpressionPtr a_;
};

class Not final : public Expression {
 public:
  Not(int line, ExpressionPtr a) : Expression(line), a_(std::move(a)) {}

 private:
  [[nodiscard]] Value evaluate(Frame& frame) const override { return !a_->value(frame).truth(); }
  ExpressionPtr a_;
};

class ComparisonOf final : public Expression {
 public:
  ComparisonOf(int line,
               ExpressionPtr first,
               std::vector<std::pair<Comparison, ExpressionPtr>> others)
      : Expression(line), first_(std::move(first)), others_(std::move(others)) {}

 private:
  [[nodiscard]] Value evaluate(Frame& frame) const override {
    Value left = first_->value(frame);
    for (const auto& [comparison, other] : others_) {
      Value right = other->value(frame);
      if (!holds(left, comparison, right)) return false;
      left = std::move(right);
    }
    return true;
  }
  static bool holds(const Value& a, Comparison comparison, const Value& b) {
    switch (comparison) {
      case Comparison::kEqual:
        return equal(a, b);
      case Comparison::kUnequal:
        return !equal(a, b);
      case Comparison::kLess:
        return compare(a, b) < 0;
      case Comparison::kLessOrEqual:
        return compare(a, b) <= 0;
      case Comparison::kGreater:
        return compare(a, b) > 0;
      case Comparison::kGreaterOrEqual:
        return compare(a, b) >= 0;
      case Comparison::kIn:
        return contains(b, a);
      case Comparison::kNotIn:
        return !contains(b, a);
    }
    return false;
  }
  ExpressionPtr first_;
  std::vector<std::pair<Comparison, ExpressionPtr>> others_;
};

class Choice final : public Expression {
 public:
  Choice(int line, ExpressionPtr condition, ExpressionPtr value, ExpressionPtr otherwise)
      : Expression(line),
        condition_(std::move(condition)),
        value_(std::move(value)),
        otherwise_(std::move(otherwise)) {}

 private:
  [[nodiscard]] Value evaluate(Frame& frame) const override {
    if (condition_->value(frame).truth()) return value_->value(frame);
    if (otherwise_ != nullptr) return otherwise_->value(frame);
    return Value::undefined("an if without an else has no value where its condition is false");
  }
  ExpressionPtr condition_;
  ExpressionPtr value_;
  ExpressionPtr otherwise_;
};

class AttributeOf final : public Expression {
 public:
  AttributeOf(int line, ExpressionPtr of, std::string name)
      : Expression(line), of_(std::move(of)), name_(std::move(name)) {}

 private:
  [[nodiscard]] Value evaluate(Frame& frame) const override {
    return attribute(of_->value(frame), name_);
  }
  ExpressionPtr of_;
  std::string name_;
};

class SubscriptOf final : public Expression {
 public:
  SubscriptOf(int line, ExpressionPtr of, ExpressionPtr key)
      : Expression(line), of_(std::move(of)), key_(std::move(key)) {}

 private:
  [[nodiscard]] Value evaluate(Frame& frame) const override {
    const Value of = of_->value(frame);
    return subscript(of, key_->value(frame));
  }
  ExpressionPtr of_;
  ExpressionPtr key_;
};

class SliceOf final : public Expression {
 public:
  SliceOf(int line, ExpressionPtr of, ExpressionPtr begin, ExpressionPtr end, ExpressionPtr step)
      : Expression(line),
        of_(std::move(of)),
        begin_(std::move(begin)),
        end_(std::move(end)),
        step_(std::move(step)) {}

 private:
  [[nodiscard]] Value evaluate(Frame& frame) const override {
    const auto bound = [&](const ExpressionPtr& expression) {
      return expression != nullptr ? expression->value(frame) : Value();
    };
    const Value of = of_->value(frame);
    return slice(of, bound(begin_), bound(end_), bound(step_));
  }
  ExpressionPtr of_;
  ExpressionPtr begin_;
  ExpressionPtr end_;
  ExpressionPtr step_;
};

class Call final : public Expression {
 public:
  Call(int line, ExpressionPtr of, CallArguments arguments)
      : Expression(line), of_(std::move(of)), arguments_(std::move(arguments)) {}

 private:
  [[nodiscard]] Value evaluate(Frame& frame) const override {
    const Value of = of_->value(frame);
    if (of.is_undefined()) throw TemplateError(of.why_undefined());
    if (!of.is_object()) throw TemplateError(fmt::format("{} cannot be called", of.kind()));
    return of.object().call(arguments_.values(frame));
  }
  ExpressionPtr of_;
  CallArguments arguments_;
};

class FilterOf final : public Expression {
 public:
  FilterOf(ExpressionPtr input, FilterCall call, Filter filter)
      : Expression(call.line),
        input_(std::move(input)),
        arguments_(std::move(call.arguments)),
        filter_(filter) {}

 private:
  [[nodiscard]] Value evaluate(Frame& frame) const override {
    const Value input = input_->value(frame);
    return filter_(input, arguments_.values(frame));
  }
  ExpressionPtr input_;
  CallArguments arguments_;
  Filter filter_;
};

class TestOf final : public Expression {
 public:
  TestOf(int line, ExpressionPtr of, CallArguments arguments, Test test)
      : Expression(line), of_(std::move(of)), arguments_(std::move(arguments)), test_(test) {}

 private:
  [[nodiscard]] Value evaluate(Frame& frame) const override {
    const Value of = of_->value(frame);
    return test_(of, arguments_.values(frame));
  }
  ExpressionPtr of_;
  CallArguments arguments_;
  Test test_;
};

}  // namespace

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->around_.get()) {
    for (const auto& [known, value] : scope->names_) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [known, old] : names_) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  names_.emplace_back(name, std::move(value));
}

Value Expression::value(Frame& frame) const {
  try {
    return evaluate(frame);
  } catch (const TemplateRefusal&) {
    throw;
  } catch (const TemplateError& error) {
    if (std::string_view(error.what()).starts_with("line ")) throw;
    refuse_at(line_, error.what());
  }
}

Arguments CallArguments::values(Frame& frame) const {
  Arguments given;
  for (const auto& argument : positional) {
    given.positional.push_back(argument->value(frame));
  }
  if (rest != nullptr) {
    for (Value& more : rest->value(frame).elements()) {
      given.positional.push_back(std::move(more));
    }
  }
  for (const auto& [name, argument] : named) {
    given.named.emplace_back(name, argument->value(frame));
  }
  if (named_rest != nullptr) {
    const Value more = named_rest->value(frame);
    if (!more.is_dict())
      throw TemplateError(fmt::format("**{}, expected a dictionary", more.kind()));
    for (const auto& [name, member] : more.members()) {
      given.named.emplace_back(name.text(), member);
    }
  }
  return given;
}

ExpressionPtr make_constant(int line, Value value) {
  return std::make_unique<Constant>(line, std::move(value));
}
ExpressionPtr make_name(int line, std::string name) {
  return std::make_unique<Name>(line, std::move(name));
}
ExpressionPtr make_list(int line, std::vector<ExpressionPtr> items, bool is_tuple) {
  return std::make_unique<ListOf>(line, std::move(items), is_tuple);
}
ExpressionPtr make_dict(int line, std::vector<std::pair<ExpressionPtr, ExpressionPtr>> members) {
  return std::make_unique<DictOf>(line, std::move(members));
}
ExpressionPtr make_operation(int line, Operator operation, ExpressionPtr a, ExpressionPtr b) {
  return std::make_unique<Operation>(line, operation, std::move(a), std::move(b));
}
ExpressionPtr make_negation(int line, ExpressionPtr a) {
  return std::make_unique<Negation>(line, std::move(a));
}
ExpressionPtr make_not(int line, ExpressionPtr a) {
  return std::make_unique<Not>(line, std::move(a));
}
ExpressionPtr make_comparison(int line,
                              ExpressionPtr first,
                              std::vector<std::pair<Comparison, ExpressionPtr>> others) {
  return std::make_unique<ComparisonOf>(line, std::move(first), std::move(others));
}
ExpressionPtr make_choice(int line,
                          ExpressionPtr condition,
                          ExpressionPtr value,
                          ExpressionPtr otherwise) {
  return std::make_unique<Choice>(line, std::move(condition), std::move(value),
                                  std::move(otherwise));
}
ExpressionPtr make_attribute(int line, ExpressionPtr of, std::string name) {
  return std::make_unique<AttributeOf>(line, std::move(of), std::move(name));
}
ExpressionPtr make_subscript(int line, ExpressionPtr of, ExpressionPtr key) {
  return std::make_unique<SubscriptOf>(line, std::move(of), std::move(key));
}
ExpressionPtr make_slice(
    int line, ExpressionPtr of, ExpressionPtr begin, ExpressionPtr end, ExpressionPtr step) {
  return std::make_unique<SliceOf>(line, std::move(of), std::move(begin), std::move(end),
                                   std::move(step));
}
ExpressionPtr make_call(int line, ExpressionPtr of, CallArguments arguments) {
  return std::make_unique<Call>(line, std::move(of), std::move(arguments));
}
ExpressionPtr make_filter(ExpressionPtr input, FilterCall call) {
  const Filter filter = find_filter(call.name);
  if (filter == nullptr) refuse_at(call.line, fmt::format("no filter \"{}\"", call.name));
  return std::make_unique<FilterOf>(std::move(input), std::move(call), filter);
}
ExpressionPtr make_test(int line, ExpressionPtr of, const std::string& name, CallArguments more) {
  const Test test = find_test(name);
  if (test == nullptr) refuse_at(line, fmt::format("no test \"{}\"", name));
  return std::make_unique<TestOf>(line, std::move(of), std::move(more), test);
}

}  // namespace dstrain::jinja
