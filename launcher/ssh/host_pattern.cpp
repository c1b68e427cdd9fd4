#include "launcher/ssh/host_pattern.h"

#include <algorithm>
#include <cctype>

namespace dstrain::launcher {
namespace {

bool same_letter(char a, char b) {
  return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
}

}  // namespace

// Linear in time but for the backtracking to the last "*", so a pattern of many stars costs at most
// text × pattern steps.
bool matches_pattern(std::string_view text, std::string_view pattern) {
  size_t t = 0;
  size_t p = 0;
  size_t star = std::string_view::npos;
  size_t after_star = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      after_star = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || same_letter(pattern[p], text[t]))) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++after_star;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

bool matches_pattern_list(std::string_view text, const std::vector<std::string_view>& patterns) {
  bool matched = false;
  for (const std::string_view pattern : patterns) {
    if (!pattern.starts_with('!')) {
      matched = matched || matches_pattern(text, pattern);
    } else if (matches_pattern(text, pattern.substr(1))) {
      return false;
    }
  }
  return matched;
}

bool matches_comma_list(std::string_view text, std::string_view list) {
  std::vector<std::string_view> patterns;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (comma > 0) patterns.push_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return matches_pattern_list(text, patterns);
}

}  // namespace dstrain::launcher
