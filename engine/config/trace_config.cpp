#include "engine/config/trace_config.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace dstrain {
namespace {

/// A number at the front of `text`, which is taken off.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || text.front() == '-') return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

}  // namespace

std::optional<std::vector<NumberSpan>> parse_spans(std::string_view text) {
  std::vector<NumberSpan> spans;
  while (!text.empty()) {
    const auto first = take_number(text);
    if (!first) return std::nullopt;
    NumberSpan span{*first, *first};
    if (!text.empty() && text.front() == '-') {
      text.remove_prefix(1);
      const auto last = text.empty() ? std::nullopt : take_number(text);
      if (!last || *last < *first) return std::nullopt;
      span.last = *last;
    }
    if (!spans.empty() && span.first <= spans.back().last) return std::nullopt;
    spans.push_back(span);
    if (text.empty()) return spans;
    if (text.front() != ',' || text.size() == 1) return std::nullopt;
    text.remove_prefix(1);
  }
  return std::nullopt;
}

std::string to_text(const std::vector<NumberSpan>& spans) {
  std::string text;
  for (const auto& [first, last] : spans) {
    if (!text.empty()) text += ',';
    text += first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
  }
  return text;
}

bool has_number(const std::vector<NumberSpan>& spans, std::int64_t number) {
  return std::any_of(spans.begin(), spans.end(),
                     [&](const NumberSpan& span) { return span.has(number); });
}

}  // namespace dstrain
