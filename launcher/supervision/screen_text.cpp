#include "launcher/supervision/screen_text.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

namespace dstrain::launcher {
namespace {

constexpr std::string_view kColourOff = "\x1b[0m";
constexpr std::string_view kBetween = "  ";

bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;  // UTF-8
}

std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char byte) { return !continues_character(byte); }));
}

/// The length of the time, "12:34:56 ", or of the program's name at the beginning of a line; else
/// 0.
std::size_t length_of_heading(std::string_view line) {
  constexpr std::string_view kTime = "00:00:00 ";
  const auto alike = [](char pattern, char c) {
    return pattern == '0' ? '0' <= c && c <= '9' : c == pattern;
  };
  if (line.size() >= kTime.size() && std::equal(kTime.begin(), kTime.end(), line.begin(), alike)) {
    return kTime.size();
  }
  const std::size_t colon = line.find(": ");
  const bool is_name = colon != std::string_view::npos && line.find(' ') > colon &&
                       (line.substr(colon + 2).starts_with("error: ") ||
                        line.substr(colon + 2).starts_with("warning: "));
  return is_name ? colon + 2 : 0;
}

}  // namespace

std::string with_coloured_level(std::string_view line) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kLevels = {
      {{"warning: ", "\x1b[33m"}, {"error: ", "\x1b[31m"}}};
  const std::size_t heading = length_of_heading(line);
  std::string text(line);
  for (const auto& [level, colour] : kLevels) {
    if (line.substr(heading).starts_with(level)) {
      text.insert(heading + level.size(), kColourOff);
      text.insert(heading, colour);
    }
  }
  return text;
}

std::string without_controls(std::string_view text) {
  constexpr unsigned kFirstPrinted = 0x20;
  constexpr unsigned kDelete = 0x7f;
  const auto is_control = [](unsigned byte) {
    return (byte < kFirstPrinted && byte != '\n' && byte != '\t') || byte == kDelete;
  };
  std::string printed;
  printed.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : '\0');
    if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {  // U+0080 to U+009F, in UTF-8
      printed += fmt::format("\\x{:02x}", next);
      ++i;
    } else if (is_control(byte)) {
      printed += fmt::format("\\x{:02x}", byte);
    } else {
      printed += text[i];
    }
  }
  return printed;
}

std::string_view fit_into_columns(std::string_view status, std::size_t columns) {
  while (width_of(status) > columns) {
    const std::size_t next = status.find(kBetween);
    if (next == std::string_view::npos) break;
    status.remove_prefix(std::min(status.find_first_not_of(' ', next), status.size()));
  }
  while (width_of(status) > columns) {
    while (continues_character(status.back()))
      status.remove_suffix(1);
    status.remove_suffix(1);
  }
  return status;
}

}  // namespace dstrain::launcher
