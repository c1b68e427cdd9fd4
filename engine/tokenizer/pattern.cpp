#include "engine/tokenizer/pattern.h"

#include <utility>

#include <fmt/format.h>
#include <oniguruma.h>

#include "engine/config/config_error.h"
#include "engine/tokenizer/unicode_text.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

// Backtracking steps that a match may take from one place of the text, and a search from all places
// together, which is seconds. The first limit is the library's own; real patterns take a few steps
// per character.
constexpr unsigned long kMostRetriesInMatch = 10'000'000;
constexpr unsigned long kMostRetriesInSearch = 500'000'000;
constexpr unsigned kMostStackEntries = 16U << 20U;  ///< of a match: about half a GiB

const OnigUChar* bytes_of(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}

void initialise_library() {
  static const int done = [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    return onig_initialize(encodings, 1);
  }();
  check(done == ONIG_NORMAL, "Oniguruma does not start: {}", done);
}

std::string message_of(int code, OnigErrorInfo* info = nullptr) {
  OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int length = info == nullptr ? onig_error_code_to_str(text, code)
                                     : onig_error_code_to_str(text, code, info);
  return {reinterpret_cast<const char*>(text), static_cast<std::size_t>(length)};
}

}  // namespace

struct Pattern::Compiled {
  explicit Compiled(const std::string& expression) {
    initialise_library();
    OnigErrorInfo info{};
    const OnigUChar* const begin = bytes_of(expression);
    const int code = onig_new(&regex, begin, begin + expression.size(), ONIG_OPTION_NONE,
                              ONIG_ENCODING_UTF8, ONIG_SYNTAX_RUBY, &info);
    if (code != ONIG_NORMAL) {
      throw ConfigError(fmt::format("\"{}\" is not a regular expression: {}", expression,
                                    message_of(code, &info)));
    }
  }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;
  ~Compiled() { onig_free(regex); }

  OnigRegex regex = nullptr;
};

struct Pattern::Search::State {
  State() {
    onig_initialize_match_param(param);
    onig_set_retry_limit_in_match_of_match_param(param, kMostRetriesInMatch);
    onig_set_retry_limit_in_search_of_match_param(param, kMostRetriesInSearch);
    onig_set_match_stack_limit_size_of_match_param(param, kMostStackEntries);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    onig_region_free(region, /*free_self=*/1);
    onig_free_match_param(param);
  }

  OnigRegion* region = onig_region_new();
  OnigMatchParam* param = onig_new_match_param();
};

Pattern Pattern::regular_expression(const std::string& expression) {
  Pattern pattern;
  pattern.compiled_ = std::make_shared<const Compiled>(expression);
  pattern.text_ = expression;
  return pattern;
}

Pattern Pattern::literal(std::string text) {
  Pattern pattern;
  pattern.text_ = std::move(text);
  return pattern;
}

Pattern Pattern::from_json(const JsonPart& part) {
  if (const auto text = part.find("String")) {
    return literal(text->text());
  }
  if (const auto expression = part.find("Regex")) {
    try {
      return regular_expression(expression->text());
    } catch (const ConfigError& error) {
      expression->fail(error.what());
    }
  }
  part.fail("expected {\"String\": …} or {\"Regex\": …}");
}

Pattern::Search::Search(const Pattern& pattern)
    : pattern_(pattern), state_(pattern.compiled_ ? std::make_unique<State>() : nullptr) {}

Pattern::Search::~Search() = default;

void Pattern::Search::start(std::string_view text) {
  text_ = text;
  from_ = 0;
  last_end_ = std::string_view::npos;
}

bool Pattern::Search::next() {
  if (!state_) {
    return next_literal();
  }
  while (from_ <= text_.size() && find_from(from_)) {
    if (begin_ < end_ || end_ != last_end_) {
      from_ = end_;
      last_end_ = end_;
      return true;
    }
    from_ += from_ < text_.size() ? bytes_of_character(text_[from_]) : 1;
  }
  return false;
}

bool Pattern::Search::next_literal() {
  begin_ = pattern_.text_.empty() ? std::string_view::npos : text_.find(pattern_.text_, from_);
  if (begin_ == std::string_view::npos) {
    return false;
  }
  from_ = end_ = begin_ + pattern_.text_.size();
  return true;
}

bool Pattern::Search::find_from(std::size_t from) {
  const OnigUChar* const text = bytes_of(text_);
  const OnigUChar* const end = text + text_.size();
  const int found = onig_search_with_param(pattern_.compiled_->regex, text, end, text + from, end,
                                           state_->region, ONIG_OPTION_NONE, state_->param);
  if (found == ONIG_MISMATCH) {
    return false;
  }
  if (found < 0) {
    throw ConfigError(
        fmt::format("the tokenizer's pattern \"{}\" takes too many steps on this text, at byte {} "
                    "of {}: {}",
                    pattern_.text_, from, text_.size(), message_of(found)));
  }
  begin_ = static_cast<std::size_t>(state_->region->beg[0]);
  end_ = static_cast<std::size_t>(state_->region->end[0]);
  return true;
}

}  // namespace dstrain
