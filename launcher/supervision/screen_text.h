// Prepares lines for a terminal: coloured where they warn, without bytes that would command it, and
// a status line that does not wrap.
#pragma once

#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

namespace dstrain::launcher {

/// "warning: " in yellow and "error: " in red where a line begins with it, be it after a time or
/// the program's name.
std::string with_coloured_level(std::string_view line);

/// Returns the part of a status line that fits into so many columns. Its parts, two spaces apart,
/// are left out from the left (the bar first); a last one that is still too long is cut at its end.
std::string_view fit_into_columns(std::string_view status, std::size_t columns);

/// The same text with each control character but tab and the end of a line in hexadecimal, "\x1b":
/// names of hosts, files and tensors are other people's, and a terminal obeys what they hold.
std::string without_controls(std::string_view text);

/// "3", "0-7", "0-2, 5".
template <typename Ranks>
std::string ranges_text(const Ranks& sorted) {
  std::string text;
  for (auto first = sorted.begin(); first != sorted.end();) {
    auto last = first;
    auto next = std::next(first);
    while (next != sorted.end() && *next == *last + 1)
      last = next++;
    text += (text.empty() ? "" : ", ") + std::to_string(*first);
    if (last != first) text += "-" + std::to_string(*last);
    first = next;
  }
  return text;
}

}  // namespace dstrain::launcher
