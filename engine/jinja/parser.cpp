#include "engine/jinja/parser.h"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/jinja/lexer.h"

namespace dstrain::jinja {
namespace {

using Kind = Token::Kind;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Block all() {
    Block block = statements({});
    if (!now().is(Kind::kEnd)) refuse("a tag that closes nothing");
    return block;
  }

 private:
  // --- Tokens ---

  [[nodiscard]] const Token& now() const { return tokens_[at_]; }
  [[nodiscard]] const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  [[nodiscard]] bool is_operator(std::string_view text) const {
    return now().is(Kind::kOperator, text);
  }
  [[nodiscard]] bool is_name(std::string_view text) const { return now().is(Kind::kName, text); }
  bool skip_operator(std::string_view text) { return skip(Kind::kOperator, text); }
  bool skip_name(std::string_view text) { return skip(Kind::kName, text); }
  bool skip(Kind kind, std::string_view text) {
    if (!now().is(kind, text)) return false;
    take();
    return true;
  }
  void expect(Kind kind, std::string_view text) {
    if (!skip(kind, text)) refuse(fmt::format("{}, expected \"{}\"", found(), text));
  }
  void expect_operator(std::string_view text) { expect(Kind::kOperator, text); }
  void end_block() {
    if (!now().is(Kind::kBlockEnd)) refuse(fmt::format("{}, expected %}}", found()));
    take();
  }
  std::string name() {
    if (!now().is(Kind::kName)) refuse(fmt::format("{}, expected a name", found()));
    return take().text;
  }
  [[nodiscard]] std::string found() const {
    switch (now().kind) {
      case Kind::kEnd:
        return "the template ends";
      case Kind::kBlockEnd:
        return "the tag ends";
      case Kind::kPrintEnd:
        return "the expression ends";
      case Kind::kString:
        return fmt::format("the string '{}'", now().text);
      default:
        return fmt::format("\"{}\"", now().text);
    }
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw TemplateError(fmt::format("line {}: {}", now().line, what));
  }

  /// Counts what is inside what, as long as it exists, so that no input exhausts the stack.
  class Descent {
   public:
    explicit Descent(Parser& parser) : parser_(parser) {
      constexpr int kDeepest = 250;
      if (++parser_.depth_ > kDeepest) parser_.refuse("nested too deeply");
    }
    Descent(const Descent&) = delete;
    Descent& operator=(const Descent&) = delete;
    ~Descent() { --parser_.depth_; }

   private:
    Parser& parser_;
  };

  // --- Statements ---

  /// Up to a tag with one of these names, which is left, or to the end.
  Block statements(std::initializer_list<std::string_view> ends) {
    const Descent descent(*this);
    Block block;
    while (!now().is(Kind::kEnd)) {
      if (now().is(Kind::kText)) {
        block.push_back(make_text(take().text));
      } else if (now().is(Kind::kPrintBegin)) {
        take();
        block.push_back(make_print(tuple_or_expression(Condition::kTaken)));
        if (!now().is(Kind::kPrintEnd)) refuse(fmt::format("{}, expected }}}}", found()));
        take();
      } else {
        const bool ends_here =
            next().is(Kind::kName) &&
            std::find(ends.begin(), ends.end(), std::string_view(next().text)) != ends.end();
        if (ends_here) return block;
        take();
        block.push_back(statement());
      }
    }
    if (ends.size() > 0) {
      refuse(fmt::format("the template ends without {{% {} %}}", *(ends.end() - 1)));
    }
    return block;
  }
  /// The block's body, and behind it the tag {% end %}.
  Block body(std::string_view end) {
    end_block();
    Block block = statements({end});
    take();
    expect(Kind::kName, end);
    end_block();
    return block;
  }

  std::unique_ptr<Statement> statement() {
    const int line = now().line;
    const std::string tag = name();
    if (tag == "for") return for_statement(line);
    if (tag == "if") return if_statement();
    if (tag == "set") return set_statement();
    if (tag == "macro") return macro_statement();
    if (tag == "call") return call_statement(line);
    if (tag == "with") return with_statement();
    if (tag == "filter") {
      std::vector<FilterCall> filters;
      filters.push_back(filter_call());
      while (skip_operator("|")) {
        filters.push_back(filter_call());
      }
      Block block = body("endfilter");
      return make_filter_block(std::move(filters), std::move(block));
    }
    if (tag == "generation") return make_generation(body("endgeneration"));
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) refuse(fmt::format("{} outside of a loop", tag));
      end_block();
      return make_leave(tag == "break" ? Statement::Then::kBreak : Statement::Then::kContinue);
    }
    throw TemplateError(fmt::format("line {}: no tag \"{}\"", line, tag));
  }

  std::unique_ptr<Statement> for_statement(int line) {
    ForLoop loop{.line = line, .target = target(), .over = nullptr, .condition = nullptr};
    expect(Kind::kName, "in");
    loop.over = tuple_or_expression(Condition::kLeft);
    if (skip_name("if")) loop.condition = expression();
    loop.is_recursive = skip_name("recursive");
    end_block();
    ++loops_;
    loop.body = statements({"else", "endfor"});
    --loops_;
    take();
    if (skip_name("else")) {
      end_block();
      loop.otherwise = statements({"endfor"});
      take();
    }
    expect(Kind::kName, "endfor");
    end_block();
    return make_for(std::move(loop));
  }

  std::unique_ptr<Statement> if_statement() {
    std::vector<std::pair<ExpressionPtr, Block>> branches;
    ExpressionPtr condition = tuple_or_expression(Condition::kLeft);
    while (true) {
      end_block();
      Block block = statements({"elif", "else", "endif"});
      const bool was_else = condition == nullptr;
      branches.emplace_back(std::move(condition), std::move(block));
      take();
      if (!was_else && skip_name("elif")) {
        condition = tuple_or_expression(Condition::kLeft);
      } else if (!was_else && skip_name("else")) {
        condition = nullptr;
      } else {
        expect(Kind::kName, "endif");
        end_block();
        return make_if(std::move(branches));
      }
    }
  }

  std::unique_ptr<Statement> set_statement() {
    Target to = target();
    if (skip_operator("=")) {
      ExpressionPtr value = tuple_or_expression(Condition::kTaken);
      end_block();
      return make_set(std::move(to), std::move(value));
    }
    std::vector<FilterCall> filters;
    while (skip_operator("|")) {
      filters.push_back(filter_call());
    }
    Block block = body("endset");
    return make_set_block(std::move(to), std::move(filters), std::move(block));
  }

  std::vector<MacroParameter> parameters() {
    std::vector<MacroParameter> list;
    expect_operator("(");
    while (!skip_operator(")")) {
      if (!list.empty()) expect_operator(",");
      MacroParameter parameter{name(), nullptr};
      if (skip_operator("=")) parameter.otherwise = expression();
      list.push_back(std::move(parameter));
    }
    return list;
  }
  std::unique_ptr<Statement> macro_statement() {
    std::string macro = name();
    std::vector<MacroParameter> list = parameters();
    Block block = body_outside_loops("endmacro");
    return make_macro(std::move(macro), std::move(list), std::move(block));
  }
  std::unique_ptr<Statement> call_statement(int line) {
    std::vector<MacroParameter> list;
    if (is_operator("(")) list = parameters();
    ExpressionPtr macro = make_name(line, name());
    while (skip_operator(".")) {
      macro = make_attribute(line, std::move(macro), name());
    }
    CallArguments given = arguments();
    Block block = body_outside_loops("endcall");
    return make_call_block(line, std::move(macro), std::move(given), std::move(list),
                           std::move(block));
  }
  Block body_outside_loops(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Block block = body(end);
    loops_ = loops;
    return block;
  }

  std::unique_ptr<Statement> with_statement() {
    std::vector<std::pair<Target, ExpressionPtr>> names;
    while (!now().is(Kind::kBlockEnd)) {
      if (!names.empty()) expect_operator(",");
      Target to = target();
      expect_operator("=");
      names.emplace_back(std::move(to), expression());
    }
    Block block = body("endwith");
    return make_with(std::move(names), std::move(block));
  }

  Target target() {
    Target first = one_target();
    if (!is_operator(",")) return first;
    Target several;
    several.parts.push_back(std::move(first));
    while (skip_operator(",")) {
      if (is_name("in") || is_operator("=") || is_operator(")")) break;
      several.parts.push_back(one_target());
    }
    return several;
  }
  Target one_target() {
    const Descent descent(*this);
    if (skip_operator("(")) {
      Target inside = target();
      expect_operator(")");
      return inside;
    }
    Target one;
    one.name = name();
    if (skip_operator(".")) one.attribute = name();
    return one;
  }

  // --- Expressions, from the loosest to the tightest ---

  /// Whether an `if` behind an expression belongs to it, or to a `for` around it.
  enum class Condition : std::uint8_t { kTaken, kLeft };

  ExpressionPtr tuple_or_expression(Condition condition) {
    const int line = now().line;
    const auto one = [&] { return condition == Condition::kTaken ? expression() : either(); };
    ExpressionPtr first = one();
    if (!is_operator(",")) return first;
    std::vector<ExpressionPtr> items;
    items.push_back(std::move(first));
    while (skip_operator(",")) {
      if (now().is(Kind::kPrintEnd) || now().is(Kind::kBlockEnd) || is_operator(")") ||
          is_name("recursive")) {
        break;
      }
      items.push_back(one());
    }
    return make_list(line, std::move(items), true);
  }

  ExpressionPtr expression() {
    const Descent descent(*this);
    const int line = now().line;
    ExpressionPtr value = either();
    while (skip_name("if")) {
      ExpressionPtr condition = either();
      ExpressionPtr otherwise = skip_name("else") ? expression() : nullptr;
      value = make_choice(line, std::move(condition), std::move(value), std::move(otherwise));
    }
    return value;
  }
  ExpressionPtr either() {
    ExpressionPtr left = both();
    for (int line = now().line; skip_name("or"); line = now().line) {
      left = make_operation(line, Operator::kOr, std::move(left), both());
    }
    return left;
  }
  ExpressionPtr both() {
    ExpressionPtr left = negated();
    for (int line = now().line; skip_name("and"); line = now().line) {
      left = make_operation(line, Operator::kAnd, std::move(left), negated());
    }
    return left;
  }
  ExpressionPtr negated() {
    const Descent descent(*this);
    const int line = now().line;
    return skip_name("not") ? make_not(line, negated()) : comparison();
  }

  std::optional<Comparison> skip_comparison() {
    struct Known {
      std::string_view text;
      Comparison comparison;
    };
    static constexpr Known kKnown[] = {
        {"==", Comparison::kEqual},  {"!=", Comparison::kUnequal},
        {"<", Comparison::kLess},    {"<=", Comparison::kLessOrEqual},
        {">", Comparison::kGreater}, {">=", Comparison::kGreaterOrEqual},
    };
    for (const Known& known : kKnown) {
      if (skip_operator(known.text)) return known.comparison;
    }
    if (skip_name("in")) return Comparison::kIn;
    if (is_name("not") && next().is(Kind::kName, "in")) {
      take();
      take();
      return Comparison::kNotIn;
    }
    return std::nullopt;
  }
  ExpressionPtr comparison() {
    const int line = now().line;
    ExpressionPtr first = sum();
    std::vector<std::pair<Comparison, ExpressionPtr>> others;
    while (const auto comparison = skip_comparison()) {
      others.emplace_back(*comparison, sum());
    }
    return others.empty() ? std::move(first)
                          : make_comparison(line, std::move(first), std::move(others));
  }

  struct Binary {
    std::string_view text;
    Operator operation;
  };
  /// Operators of one rank, from the left.
  template <std::size_t N>
  ExpressionPtr chain(const Binary (&operators)[N], ExpressionPtr (Parser::*operand)()) {
    ExpressionPtr left = (this->*operand)();
    while (true) {
      const int line = now().line;
      const Binary* const found =
          std::find_if(std::begin(operators), std::end(operators),
                       [&](const Binary& binary) { return is_operator(binary.text); });
      if (found == std::end(operators)) return left;
      take();
      left = make_operation(line, found->operation, std::move(left), (this->*operand)());
    }
  }
  ExpressionPtr sum() {
    static constexpr Binary kSums[] = {{"+", Operator::kAdd}, {"-", Operator::kSubtract}};
    return chain(kSums, &Parser::joined);
  }
  ExpressionPtr joined() {
    static constexpr Binary kJoin[] = {{"~", Operator::kJoin}};
    return chain(kJoin, &Parser::product);
  }
  ExpressionPtr product() {
    static constexpr Binary kProducts[] = {{"*", Operator::kMultiply},
                                           {"/", Operator::kDivide},
                                           {"//", Operator::kDivideWhole},
                                           {"%", Operator::kRemainder}};
    return chain(kProducts, &Parser::raised);
  }
  ExpressionPtr raised() {
    static constexpr Binary kPower[] = {{"**", Operator::kPower}};
    return chain(kPower, &Parser::filtered);
  }

  ExpressionPtr filtered() { return filters_of(postfix_of(signed_operand())); }
  ExpressionPtr signed_operand() {
    const Descent descent(*this);
    const int line = now().line;
    if (skip_operator("-")) return make_negation(line, postfix_of(signed_operand()));
    if (skip_operator("+")) return postfix_of(signed_operand());
    return primary();
  }

  ExpressionPtr primary() {
    const int line = now().line;
    if (now().is(Kind::kName)) {
      const std::string text = take().text;
      if (text == "true" || text == "True") return make_constant(line, true);
      if (text == "false" || text == "False") return make_constant(line, false);
      if (text == "none" || text == "None") return make_constant(line, {});
      return make_name(line, text);
    }
    if (now().is(Kind::kString)) {
      std::string text;
      while (now().is(Kind::kString)) {  // strings side by side are one
        text += take().text;
      }
      return make_constant(line, std::move(text));
    }
    if (now().is(Kind::kInteger)) {
      errno = 0;
      const std::string digits = take().text;
      const std::int64_t value = std::strtoll(digits.c_str(), nullptr, 10);
      if (errno == ERANGE) refuse(fmt::format("{} has more than 64 bits", digits));
      return make_constant(line, value);
    }
    if (now().is(Kind::kFloat)) {
      return make_constant(line, std::strtod(take().text.c_str(), nullptr));
    }
    if (skip_operator("(")) {
      if (skip_operator(")")) return make_list(line, {}, true);
      ExpressionPtr inside = tuple_or_expression(Condition::kTaken);
      expect_operator(")");
      return inside;
    }
    if (skip_operator("[")) {
      std::vector<ExpressionPtr> items;
      while (!skip_operator("]")) {
        if (!items.empty()) expect_operator(",");
        if (skip_operator("]")) break;
        items.push_back(expression());
      }
      return make_list(line, std::move(items), false);
    }
    if (skip_operator("{")) {
      std::vector<std::pair<ExpressionPtr, ExpressionPtr>> members;
      while (!skip_operator("}")) {
        if (!members.empty()) expect_operator(",");
        if (skip_operator("}")) break;
        ExpressionPtr key = expression();
        expect_operator(":");
        members.emplace_back(std::move(key), expression());
      }
      return make_dict(line, std::move(members));
    }
    refuse(fmt::format("{}, expected a value", found()));
  }

  ExpressionPtr postfix_of(ExpressionPtr of) {
    while (true) {
      const int line = now().line;
      if (skip_operator(".")) {
        if (now().is(Kind::kInteger)) {
          const std::string digits = take().text;
          of = make_subscript(line, std::move(of),
                              make_constant(line, std::int64_t{std::atoll(digits.c_str())}));
        } else {
          of = make_attribute(line, std::move(of), name());
        }
      } else if (skip_operator("[")) {
        of = subscript_of(line, std::move(of));
      } else if (is_operator("(")) {
        of = make_call(line, std::move(of), arguments());
      } else {
        return of;
      }
    }
  }

  ExpressionPtr subscript_of(int line, ExpressionPtr of) {
    ExpressionPtr bounds[3];
    int colons = 0;
    while (!skip_operator("]")) {
      if (colons < 2 && skip_operator(":")) {
        ++colons;
      } else if (bounds[colons] == nullptr) {
        bounds[colons] = expression();
      } else {
        refuse(fmt::format("{}, expected ]", found()));
      }
    }
    if (colons == 0 && bounds[0] == nullptr) refuse("[] without a key");
    if (colons == 0) return make_subscript(line, std::move(of), std::move(bounds[0]));
    return make_slice(line, std::move(of), std::move(bounds[0]), std::move(bounds[1]),
                      std::move(bounds[2]));
  }

  CallArguments arguments() {
    CallArguments given;
    expect_operator("(");
    for (bool is_first = true; !skip_operator(")"); is_first = false) {
      if (!is_first) expect_operator(",");
      if (skip_operator(")")) break;
      if (skip_operator("**")) {
        given.named_rest = expression();
      } else if (skip_operator("*")) {
        given.rest = expression();
      } else if (now().is(Kind::kName) && next().is(Kind::kOperator, "=")) {
        std::string parameter = name();
        take();
        given.named.emplace_back(std::move(parameter), expression());
      } else {
        if (!given.named.empty()) refuse("an argument without a name behind one with a name");
        given.positional.push_back(expression());
      }
    }
    return given;
  }

  FilterCall filter_call() {
    FilterCall call{.name = "", .arguments = {}, .line = now().line};
    call.name = name();
    if (is_operator("(")) call.arguments = arguments();
    return call;
  }

  ExpressionPtr filters_of(ExpressionPtr of) {
    while (true) {
      const int line = now().line;
      if (skip_operator("|")) {
        of = make_filter(std::move(of), filter_call());
      } else if (skip_name("is")) {
        of = test_of(line, std::move(of));
      } else if (is_operator("(")) {
        of = make_call(line, std::move(of), arguments());
      } else {
        return of;
      }
    }
  }

  ExpressionPtr test_of(int line, ExpressionPtr of) {
    const bool is_negated = skip_name("not");
    const std::string test = name();
    CallArguments more;
    if (is_operator("(")) {
      more = arguments();
    } else if (begins_test_argument()) {
      more.positional.push_back(postfix_of(primary()));
    }
    ExpressionPtr result = make_test(line, std::move(of), test, std::move(more));
    return is_negated ? make_not(line, std::move(result)) : std::move(result);
  }
  [[nodiscard]] bool begins_test_argument() const {
    if (now().is(Kind::kName)) {
      const std::string& text = now().text;
      return text != "else" && text != "or" && text != "and" && text != "is" && text != "if" &&
             text != "in" && text != "not";
    }
    return now().is(Kind::kString) || now().is(Kind::kInteger) || now().is(Kind::kFloat) ||
           is_operator("[") || is_operator("{");
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int loops_ = 0;  // around the statement
  int depth_ = 0;
};

}  // namespace

Block parse(std::string_view source) {
  return Parser(tokens_of(source)).all();
}

}  // namespace dstrain::jinja
