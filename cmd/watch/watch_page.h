// The page of `dstrain watch`: what a run's files tell, as lines of styled text for a terminal of
// any size. It draws nothing itself.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cmd/watch/watched_run.h"

namespace dstrain {

enum class Style : std::uint8_t {
  kPlain,
  kBold,
  kDim,
  kGood,
  kWarning,
  kBad,
  kFirst,
  kSecond,
  kThird
};

struct StyledText {
  std::string text;
  Style style = Style::kPlain;
};
using PageLine = std::vector<StyledText>;

/// The signs that bars and curves are made of.
struct Signs {
  std::string_view full = "█";
  std::string_view empty = "░";
  std::string_view curve = "▁▂▃▄▅▆▇█";  ///< eight of one column each
  int curve_bytes = 3;                  ///< of each
};
inline constexpr Signs kUnicode{};
inline constexpr Signs kAscii{.full = "#", .empty = ".", .curve = "_.-:=+*#", .curve_bytes = 1};

/// At most `columns` by `rows`; a line takes a column for each code point.
std::vector<PageLine> watch_page(const WatchedRun& run, int columns, int rows, const Signs& signs);

/// A curve of so many columns, each the mean of its share of the values, from the least to the
/// greatest; shorter where there are fewer values.
std::string sparkline(const std::vector<double>& values, int columns, const Signs& signs);

/// "step 120/400  loss 2.1345  80,028 tokens/s  0:15 left".
std::string watch_line(const WatchedRun& run);

/// The number of columns of a text.
int columns_taken(std::string_view text);

}  // namespace dstrain
