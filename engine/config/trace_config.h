// TraceConfig: the steps and ranks of a run whose work is written down in full. It is part of
// config.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

/// Whole numbers from `first` to `last`, both among them.
struct NumberSpan {
  std::int64_t first = 0;
  std::int64_t last = 0;

  [[nodiscard]] bool has(std::int64_t number) const { return first <= number && number <= last; }
  bool operator==(const NumberSpan&) const = default;
};

/// "20-24", "3", "0,4-7": ascending, without overlap. Nothing where it is something else.
std::optional<std::vector<NumberSpan>> parse_spans(std::string_view text);
std::string to_text(const std::vector<NumberSpan>& spans);
bool has_number(const std::vector<NumberSpan>& spans, std::int64_t number);

struct TraceConfig {
  /// The most steps in a row: a rank keeps their events in memory until the last has ended.
  static constexpr std::int64_t kMostSteps = 100;

  std::vector<NumberSpan> steps;  ///< each a trace of its own
  std::vector<NumberSpan> ranks;  ///< empty: all

  bool operator==(const TraceConfig&) const = default;
};

}  // namespace dstrain
