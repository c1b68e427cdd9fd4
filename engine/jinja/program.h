// What a parsed template is made of: statements that write text, and expressions that have a value,
// each of which knows how to do that in a frame. program.cpp has the expressions, statements.cpp
// the statements.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/jinja/value.h"

namespace dstrain::jinja {

/// A part of the text written.
struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// Names and their values; a name that is not here may be in the scope around it. Macros share the
/// scope that they were defined in.
class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> around) : around_(std::move(around)) {}
  [[nodiscard]] const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
  void clear() { names_.clear(); }

 private:
  std::vector<std::pair<std::string, Value>> names_;
  std::shared_ptr<Scope> around_;
};

/// One rendering of a template.
struct Rendering {
  std::string text{};
  std::vector<Span> generated{};  ///< of the text: what {% generation %} encloses
  /// A {% generation %} was within a macro or a block that is kept, and where its text went is not
  /// known.
  bool lost_generated = false;
  int depth = 0;  ///< of macros and loops that call themselves
  /// Turns of loops that are left: a template that wants more goes on for ever.
  std::int64_t turns_left = 1'000'000;
};

struct Frame {
  Rendering& rendering;
  std::string& out;  ///< what statements write to
  std::shared_ptr<Scope> scope;

  /// The same with another scope inside this one.
  [[nodiscard]] Frame inside() const { return {rendering, out, std::make_shared<Scope>(scope)}; }
  [[nodiscard]] bool writes_text() const { return &out == &rendering.text; }
};

class Expression {
 public:
  explicit Expression(int line) : line_(line) {}
  Expression(const Expression&) = delete;
  Expression& operator=(const Expression&) = delete;
  virtual ~Expression() = default;
  /// evaluate(), with the line in what it throws.
  [[nodiscard]] Value value(Frame& frame) const;
  [[nodiscard]] int line() const { return line_; }

 private:
  [[nodiscard]] virtual Value evaluate(Frame& frame) const = 0;
  int line_;
};
using ExpressionPtr = std::unique_ptr<Expression>;

class Statement {
 public:
  /// What comes after a statement: the next one, the next turn of the loop, or the loop's end.
  enum class Then : std::uint8_t { kNext, kContinue, kBreak };
  Statement() = default;
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  virtual ~Statement() = default;
  virtual Then run(Frame& frame) const = 0;
};
using Block = std::vector<std::unique_ptr<Statement>>;
Statement::Then run(const Block& block, Frame& frame);

/// What is assigned to: a name, an attribute of a namespace, or several of these.
struct Target {
  std::string name{};       ///< or the namespace's
  std::string attribute{};  ///< of a namespace; else empty
  std::vector<Target> parts{};

  void assign(Frame& frame, const Value& value) const;
};

struct CallArguments {
  std::vector<ExpressionPtr> positional{};
  std::vector<std::pair<std::string, ExpressionPtr>> named{};
  ExpressionPtr rest{};        ///< *list, or nullptr
  ExpressionPtr named_rest{};  ///< **dictionary, or nullptr

  [[nodiscard]] Arguments values(Frame& frame) const;
};

/// `name | filter(arguments)`; `input` is nullptr in a {% filter %} block.
struct FilterCall {
  std::string name;
  CallArguments arguments;
  int line = 1;
};

/// The binary operators of operators.h, `~`, and those that need not look at both sides.
enum class Operator : std::uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kDivideWhole,
  kRemainder,
  kPower,
  kJoin,
  kAnd,
  kOr
};
enum class Comparison : std::uint8_t {
  kEqual,
  kUnequal,
  kLess,
  kLessOrEqual,
  kGreater,
  kGreaterOrEqual,
  kIn,
  kNotIn
};

ExpressionPtr make_constant(int line, Value value);
ExpressionPtr make_name(int line, std::string name);
ExpressionPtr make_list(int line, std::vector<ExpressionPtr> items, bool is_tuple);
ExpressionPtr make_dict(int line, std::vector<std::pair<ExpressionPtr, ExpressionPtr>> members);
ExpressionPtr make_operation(int line, Operator operation, ExpressionPtr a, ExpressionPtr b);
ExpressionPtr make_negation(int line, ExpressionPtr a);
ExpressionPtr make_not(int line, ExpressionPtr a);
/// a < b <= c: each operand is looked at once.
ExpressionPtr make_comparison(int line,
                              ExpressionPtr first,
                              std::vector<std::pair<Comparison, ExpressionPtr>> others);
/// nullptr for `otherwise`: undefined.
ExpressionPtr make_choice(int line,
                          ExpressionPtr condition,
                          ExpressionPtr value,
                          ExpressionPtr otherwise);
ExpressionPtr make_attribute(int line, ExpressionPtr of, std::string name);
ExpressionPtr make_subscript(int line, ExpressionPtr of, ExpressionPtr key);
/// Bounds may be nullptr.
ExpressionPtr make_slice(
    int line, ExpressionPtr of, ExpressionPtr begin, ExpressionPtr end, ExpressionPtr step);
ExpressionPtr make_call(int line, ExpressionPtr of, CallArguments arguments);
/// Throws TemplateError where there is no such filter.
ExpressionPtr make_filter(ExpressionPtr input, FilterCall call);
ExpressionPtr make_test(int line, ExpressionPtr of, const std::string& name, CallArguments more);

struct MacroParameter {
  std::string name;
  ExpressionPtr otherwise;  ///< nullptr: undefined
};

std::unique_ptr<Statement> make_text(std::string text);
std::unique_ptr<Statement> make_print(ExpressionPtr value);
/// The last condition is nullptr for `else`.
std::unique_ptr<Statement> make_if(std::vector<std::pair<ExpressionPtr, Block>> branches);
struct ForLoop {
  int line = 1;
  Target target;
  ExpressionPtr over;
  ExpressionPtr condition;  ///< or nullptr
  bool is_recursive = false;
  Block body{};
  Block otherwise{};
};
std::unique_ptr<Statement> make_for(ForLoop loop);
std::unique_ptr<Statement> make_set(Target target, ExpressionPtr value);
/// Sets what the block writes, filtered.
std::unique_ptr<Statement> make_set_block(Target target,
                                          std::vector<FilterCall> filters,
                                          Block body);
std::unique_ptr<Statement> make_macro(std::string name,
                                      std::vector<MacroParameter> parameters,
                                      Block body);
/// {% call(parameters) macro() %}: `call` is the macro's call.
std::unique_ptr<Statement> make_call_block(int line,
                                           ExpressionPtr macro,
                                           CallArguments arguments,
                                           std::vector<MacroParameter> parameters,
                                           Block body);
std::unique_ptr<Statement> make_filter_block(std::vector<FilterCall> filters, Block body);
std::unique_ptr<Statement> make_with(std::vector<std::pair<Target, ExpressionPtr>> names,
                                     Block body);
std::unique_ptr<Statement> make_generation(Block body);
std::unique_ptr<Statement> make_leave(Statement::Then then);

}  // namespace dstrain::jinja
