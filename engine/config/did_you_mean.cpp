#include "engine/config/did_you_mean.h"

#include <algorithm>

namespace dstrain {
namespace {

std::string folded(std::string_view name) {
  std::string result(name);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '-') c = '_';
  }
  return result;
}

}  // namespace

// Damerau 1964 in its restricted form (optimal string alignment), three rows at a time.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  const std::string from = folded(a);
  const std::string to = folded(b);
  std::vector<std::size_t> before_last(to.size() + 1);
  std::vector<std::size_t> last(to.size() + 1);
  std::vector<std::size_t> row(to.size() + 1);
  for (std::size_t j = 0; j <= to.size(); ++j) {
    row[j] = j;
  }
  for (std::size_t i = 1; i <= from.size(); ++i) {
    std::swap(before_last, last);
    std::swap(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= to.size(); ++j) {
      const std::size_t replace = last[j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replace});
      if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
  }
  return row[to.size()];
}

std::optional<std::string> nearest_name(std::string_view name,
                                        const std::vector<std::string>& candidates,
                                        std::size_t limit) {
  std::optional<std::string> nearest;
  std::size_t least = limit + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < least) {
      least = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::size_t typing_error_limit(std::string_view name) {
  return name.size() < 2 ? 0 : std::max<std::size_t>(1, name.size() / 3);
}

}  // namespace dstrain
