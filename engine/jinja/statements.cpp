#include <algorithm>

#include <fmt/format.h>

#include "engine/jinja/functions.h"
#include "engine/jinja/operators.h"
#include "engine/jinja/program.h"

namespace dstrain::jinja {
namespace {

using Then = Statement::Then;

/// Counts macros and loops that are inside each other, as long as it exists.
class Descent {
 public:
  explicit Descent(Rendering& rendering) : rendering_(rendering) {
    constexpr int kDeepest = 200;
    if (++rendering.depth > kDeepest) {
      --rendering.depth;
      throw TemplateError("macros or loops that call themselves without end");
    }
  }
  Descent(const Descent&) = delete;
  Descent& operator=(const Descent&) = delete;
  ~Descent() { --rendering_.depth; }

 private:
  Rendering& rendering_;
};

/// What a block writes, in a scope of its own.
std::string text_of(const Block& body, Frame& frame) {
  std::string text;
  Frame inner{frame.rendering, text, std::make_shared<Scope>(frame.scope)};
  run(body, inner);
  return text;
}

Value filtered(Value value,
               const std::vector<std::pair<Filter, const FilterCall*>>& filters,
               Frame& frame) {
  for (const auto& [filter, call] : filters) {
    value = filter(value, call->arguments.values(frame));
  }
  return value;
}

class Filters {
 public:
  explicit Filters(std::vector<FilterCall> calls) : calls_(std::move(calls)) {
    for (const FilterCall& call : calls_) {
      const Filter filter = find_filter(call.name);
      if (filter == nullptr) {
        throw TemplateError(fmt::format("line {}: no filter \"{}\"", call.line, call.name));
      }
      found_.emplace_back(filter, &call);
    }
  }
  [[nodiscard]] Value apply(Value value, Frame& frame) const {
    return filtered(std::move(value), found_, frame);
  }

 private:
  std::vector<FilterCall> calls_;
  std::vector<std::pair<Filter, const FilterCall*>> found_;
};

class Text final : public Statement {
 public:
  explicit Text(std::string text) : text_(std::move(text)) {}
  Then run(Frame& frame) const override {
    frame.out += text_;
    return Then::kNext;
  }

 private:
  std::string text_;
};

class Print final : public Statement {
 public:
  explicit Print(ExpressionPtr value) : value_(std::move(value)) {}
  Then run(Frame& frame) const override {
    const Value value = value_->value(frame);
    if (value.is_string()) {
      frame.out += value.string();
    } else {
      frame.out += value.text();
    }
    check_length(frame.out.size());
    return Then::kNext;
  }

 private:
  ExpressionPtr value_;
};

class If final : public Statement {
 public:
  explicit If(std::vector<std::pair<ExpressionPtr, Block>> branches)
      : branches_(std::move(branches)) {}
  Then run(Frame& frame) const override {
    for (const auto& [condition, block] : branches_) {
      if (condition == nullptr || condition->value(frame).truth()) {
        return jinja::run(block, frame);
      }
    }
    return Then::kNext;
  }

 private:
  std::vector<std::pair<ExpressionPtr, Block>> branches_;
};

class For final : public Statement {
 public:
  explicit For(ForLoop loop) : loop_(std::move(loop)) {}
  Then run(Frame& frame) const override {
    go_through(loop_.over->value(frame), frame, 0);
    return Then::kNext;
  }

  void go_through(const Value& over, Frame& frame, int depth) const;

 private:
  [[nodiscard]] Items wanted(const Value& over, Frame& frame) const {
    Items items = over.elements();
    if (loop_.condition == nullptr) return items;
    Items kept;
    for (Value& item : items) {
      Frame inner = frame.inside();
      loop_.target.assign(inner, item);
      if (loop_.condition->value(inner).truth()) kept.push_back(std::move(item));
    }
    return kept;
  }

  ForLoop loop_;
};

/// The object `loop`.
class Loop final : public Object {
 public:
  Loop(const Items& items, int depth, const For* again, Frame& frame)
      : items_(items), depth_(depth), again_(again), frame_(frame) {}

  void move_to(std::size_t index) { index_ = index; }
  [[nodiscard]] std::string describe() const override { return "loop"; }
  [[nodiscard]] bool is_callable() const override { return again_ != nullptr; }
  Value call(const Arguments& arguments) override {
    if (again_ == nullptr) throw TemplateError("loop() in a loop that is not recursive");
    const Bound bound("loop", arguments, {"iterable"});
    const Descent descent(frame_.rendering);
    std::string text;
    Frame inner{frame_.rendering, text, frame_.scope};
    again_->go_through(bound.required(0), inner, depth_ + 1);
    return text;
  }
  [[nodiscard]] std::optional<Value> attribute(std::string_view name) const override {
    const auto index = static_cast<std::int64_t>(index_);
    const auto size = static_cast<std::int64_t>(items_.size());
    if (name == "index") return index + 1;
    if (name == "index0") return index;
    if (name == "revindex") return size - index;
    if (name == "revindex0") return size - index - 1;
    if (name == "first") return index == 0;
    if (name == "last") return index + 1 == size;
    if (name == "length") return size;
    if (name == "depth") return depth_ + 1;
    if (name == "depth0") return depth_;
    if (name == "previtem") {
      return index > 0 ? items_[index_ - 1] : Value::undefined("there is no previous item");
    }
    if (name == "nextitem") {
      return index + 1 < size ? items_[index_ + 1] : Value::undefined("there is no next item");
    }
    if (name == "cycle") return make_method(&Loop::cycle, "cycle");
    if (name == "changed") return make_method(&Loop::changed, "changed");
    return std::nullopt;
  }

 private:
  /// A method of a loop, which exists as long as the loop runs.
  using Member = Value (Loop::*)(const Arguments&) const;
  class Method final : public Object {
   public:
    Method(const Loop& loop, Member member, std::string_view name)
        : loop_(loop), member_(member), name_(name) {}
    [[nodiscard]] std::string describe() const override { return fmt::format("loop.{}", name_); }
    [[nodiscard]] bool is_callable() const override { return true; }
    Value call(const Arguments& arguments) override { return (loop_.*member_)(arguments); }

   private:
    const Loop& loop_;
    Member member_;
    std::string_view name_;
  };
  [[nodiscard]] Value make_method(Member member, std::string_view name) const {
    return std::shared_ptr<Object>(std::make_shared<Method>(*this, member, name));
  }
  [[nodiscard]] Value cycle(const Arguments& arguments) const {
    if (arguments.positional.empty()) throw TemplateError("loop.cycle() of nothing");
    return arguments.positional[index_ % arguments.positional.size()];
  }
  [[nodiscard]] Value changed(const Arguments& arguments) const {
    Value now = Value::tuple(arguments.positional);
    const bool differs = !last_ || !equal(*last_, now);
    last_ = std::move(now);
    return differs;
  }

  const Items& items_;
  int depth_;
  const For* again_;
  Frame& frame_;
  std::size_t index_ = 0;
  mutable std::optional<Value> last_;  // of changed()
};

void For::go_through(const Value& over, Frame& frame, int depth) const {
  const Items items = wanted(over, frame);
  const auto loop =
      std::make_shared<Loop>(items, depth, loop_.is_recursive ? this : nullptr, frame);
  const Value loop_value{std::shared_ptr<Object>(loop)};
  Frame inner = frame.inside();
  for (std::size_t i = 0; i < items.size(); ++i) {
    inner.scope->clear();
    if (--frame.rendering.turns_left < 0) {
      throw TemplateError("its loops go on for more than a million turns");
    }
    loop->move_to(i);
    inner.scope->set("loop", loop_value);
    loop_.target.assign(inner, items[i]);
    if (jinja::run(loop_.body, inner) == Then::kBreak) break;
  }
  if (items.empty()) {
    Frame otherwise = frame.inside();
    jinja::run(loop_.otherwise, otherwise);
  }
}

class Set final : public Statement {
 public:
  Set(Target target, ExpressionPtr value) : target_(std::move(target)), value_(std::move(value)) {}
  Then run(Frame& frame) const override {
    target_.assign(frame, value_->value(frame));
    return Then::kNext;
  }

 private:
  Target target_;
  ExpressionPtr value_;
};

class SetBlock final : public Statement {
 public:
  SetBlock(Target target, std::vector<FilterCall> filters, Block body)
      : target_(std::move(target)), filters_(std::move(filters)), body_(std::move(body)) {}
  Then run(Frame& frame) const override {
    target_.assign(frame, filters_.apply(text_of(body_, frame), frame));
    return Then::kNext;
  }

 private:
  Target target_;
  Filters filters_;
  Block body_;
};

class FilterBlock final : public Statement {
 public:
  FilterBlock(std::vector<FilterCall> filters, Block body)
      : filters_(std::move(filters)), body_(std::move(body)) {}
  Then run(Frame& frame) const override {
    frame.out += filters_.apply(text_of(body_, frame), frame).text();
    return Then::kNext;
  }

 private:
  Filters filters_;
  Block body_;
};

/// What {% macro %} and {% call %} define: a function whose value is the text that it writes.
struct MacroDefinition {
  std::string name;
  std::vector<MacroParameter> parameters;
  Block body;
};

class Macro final : public Object {
 public:
  Macro(const MacroDefinition& definition, Rendering& rendering, std::shared_ptr<Scope> scope)
      : definition_(definition), rendering_(rendering), scope_(std::move(scope)) {}

  [[nodiscard]] std::string describe() const override { return "the macro " + definition_.name; }
  [[nodiscard]] bool is_callable() const override { return true; }
  [[nodiscard]] std::optional<Value> attribute(std::string_view name) const override {
    if (name == "name") return Value(definition_.name);
    return std::nullopt;
  }
  Value call(const Arguments& arguments) override {
    const Descent descent(rendering_);
    std::string text;
    const auto scope = scope_.lock();
    if (scope == nullptr) throw TemplateError(describe() + " is called outside of its block");
    Frame frame{rendering_, text, std::make_shared<Scope>(scope)};
    bind(arguments, frame);
    run(definition_.body, frame);
    return text;
  }

 private:
  void bind(const Arguments& arguments, Frame& frame) const {
    const auto& parameters = definition_.parameters;
    std::vector<bool> is_given(parameters.size(), false);
    Items more;
    for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
      if (i < parameters.size()) {
        frame.scope->set(parameters[i].name, arguments.positional[i]);
        is_given[i] = true;
      } else {
        more.push_back(arguments.positional[i]);
      }
    }
    Members named;
    for (const auto& [name, value] : arguments.named) {
      const auto parameter = std::find_if(parameters.begin(), parameters.end(),
                                          [&](const auto& known) { return known.name == name; });
      if (parameter != parameters.end()) {
        frame.scope->set(name, value);
        is_given[static_cast<std::size_t>(parameter - parameters.begin())] = true;
      } else if (name == "caller") {
        frame.scope->set(name, value);
      } else {
        named.emplace_back(name, value);
      }
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (is_given[i]) continue;
      const MacroParameter& parameter = parameters[i];
      frame.scope->set(
          parameter.name,
          parameter.otherwise != nullptr
              ? parameter.otherwise->value(frame)
              : Value::undefined(fmt::format("parameter \"{}\" was not provided", parameter.name)));
    }
    frame.scope->set("varargs", Value::tuple(std::move(more)));
    frame.scope->set("kwargs", Value::dict(std::move(named)));
  }

  const MacroDefinition& definition_;
  Rendering& rendering_;
  std::weak_ptr<Scope> scope_;  // which has the macro, and so does not belong to it
};

class DefineMacro final : public Statement {
 public:
  explicit DefineMacro(MacroDefinition definition) : definition_(std::move(definition)) {}
  Then run(Frame& frame) const override {
    frame.scope->set(definition_.name, std::shared_ptr<Object>(std::make_shared<Macro>(
                                           definition_, frame.rendering, frame.scope)));
    return Then::kNext;
  }

 private:
  MacroDefinition definition_;
};

class CallBlock final : public Statement {
 public:
  CallBlock(int line, ExpressionPtr macro, CallArguments arguments, MacroDefinition caller)
      : line_(line),
        macro_(std::move(macro)),
        arguments_(std::move(arguments)),
        caller_(std::move(caller)) {}
  Then run(Frame& frame) const override {
    const Value macro = macro_->value(frame);
    if (!macro.is_object()) {
      throw TemplateError(fmt::format("line {}: {} cannot be called", line_, macro.kind()));
    }
    Arguments arguments = arguments_.values(frame);
    arguments.named.emplace_back("caller", std::shared_ptr<Object>(std::make_shared<Macro>(
                                               caller_, frame.rendering, frame.scope)));
    frame.out += macro.object().call(arguments).text();
    return Then::kNext;
  }

 private:
  int line_;
  ExpressionPtr macro_;
  CallArguments arguments_;
  MacroDefinition caller_;
};

class With final : public Statement {
 public:
  With(std::vector<std::pair<Target, ExpressionPtr>> names, Block body)
      : names_(std::move(names)), body_(std::move(body)) {}
  Then run(Frame& frame) const override {
    Frame inner = frame.inside();
    for (const auto& [target, value] : names_) {
      target.assign(inner, value->value(frame));
    }
    return jinja::run(body_, inner);
  }

 private:
  std::vector<std::pair<Target, ExpressionPtr>> names_;
  Block body_;
};

class Generation final : public Statement {
 public:
  explicit Generation(Block body) : body_(std::move(body)) {}
  Then run(Frame& frame) const override {
    const std::size_t begin = frame.out.size();
    Frame inner = frame.inside();
    const Then then = jinja::run(body_, inner);
    if (frame.writes_text()) {
      frame.rendering.generated.push_back({begin, frame.out.size()});
    } else {
      frame.rendering.lost_generated = true;
    }
    return then;
  }

 private:
  Block body_;
};

class Leave final : public Statement {
 public:
  explicit Leave(Then then) : then_(then) {}
  Then run(Frame& /*frame*/) const override { return then_; }

 private:
  Then then_;
};

}  // namespace

Statement::Then run(const Block& block, Frame& frame) {
  for (const auto& statement : block) {
    const Then then = statement->run(frame);
    if (then != Then::kNext) return then;
  }
  return Then::kNext;
}

void Target::assign(Frame& frame, const Value& value) const {
  if (!attribute.empty()) {
    const Value* const found = frame.scope->find(name);
    if (found == nullptr) throw TemplateError(fmt::format("\"{}\" is undefined", name));
    set_attribute(*found, attribute, value);
    return;
  }
  if (parts.empty()) {
    frame.scope->set(name, value);
    return;
  }
  const Items items = value.elements();
  if (items.size() != parts.size()) {
    throw TemplateError(fmt::format("{} values for {} names", items.size(), parts.size()));
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].assign(frame, items[i]);
  }
}

std::unique_ptr<Statement> make_text(std::string text) {
  return std::make_unique<Text>(std::move(text));
}
std::unique_ptr<Statement> make_print(ExpressionPtr value) {
  return std::make_unique<Print>(std::move(value));
}
std::unique_ptr<Statement> make_if(std::vector<std::pair<ExpressionPtr, Block>> branches) {
  return std::make_unique<If>(std::move(branches));
}
std::unique_ptr<Statement> make_for(ForLoop loop) {
  return std::make_unique<For>(std::move(loop));
}
std::unique_ptr<Statement> make_set(Target target, ExpressionPtr value) {
  return std::make_unique<Set>(std::move(target), std::move(value));
}
std::unique_ptr<Statement> make_set_block(Target target,
                                          std::vector<FilterCall> filters,
                                          Block body) {
  return std::make_unique<SetBlock>(std::move(target), std::move(filters), std::move(body));
}
std::unique_ptr<Statement> make_macro(std::string name,
                                      std::vector<MacroParameter> parameters,
                                      Block body) {
  return std::make_unique<DefineMacro>(
      MacroDefinition{std::move(name), std::move(parameters), std::move(body)});
}
std::unique_ptr<Statement> make_call_block(int line,
                                           ExpressionPtr macro,
                                           CallArguments arguments,
                                           std::vector<MacroParameter> parameters,
                                           Block body) {
  return std::make_unique<CallBlock>(
      line, std::move(macro), std::move(arguments),
      MacroDefinition{"caller", std::move(parameters), std::move(body)});
}
std::unique_ptr<Statement> make_filter_block(std::vector<FilterCall> filters, Block body) {
  return std::make_unique<FilterBlock>(std::move(filters), std::move(body));
}
std::unique_ptr<Statement> make_with(std::vector<std::pair<Target, ExpressionPtr>> names,
                                     Block body) {
  return std::make_unique<With>(std::move(names), std::move(body));
}
std::unique_ptr<Statement> make_generation(Block body) {
  return std::make_unique<Generation>(std::move(body));
}
std::unique_ptr<Statement> make_leave(Statement::Then then) {
  return std::make_unique<Leave>(then);
}

}  // namespace dstrain::jinja
