#include "cmd/launch/token_strength.h"

#include <array>
#include <cctype>
#include <cmath>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace dstrain {
namespace {

constexpr double kBits = 128;

bool is_hexadecimal(char c) {
  return std::isxdigit(static_cast<unsigned char>(c)) != 0;
}

/// The size of the smallest usual alphabet that has all of the token's characters.
int size_of_alphabet(std::string_view token) {
  bool is_hex = true;
  std::array<std::pair<bool, int>, 4> classes = {
      {{false, 10}, {false, 26}, {false, 26}, {false, 2}}};
  for (const char c : token) {
    const auto byte = static_cast<unsigned char>(c);
    is_hex = is_hex && is_hexadecimal(c);
    if (std::isdigit(byte) != 0) {
      classes[0].first = true;
    } else if (std::islower(byte) != 0) {
      classes[1].first = true;
    } else if (std::isupper(byte) != 0) {
      classes[2].first = true;
    } else {
      classes[3].first = true;  // as base64 has them: somebody's punctuation is no more random
    }
  }
  int size = 0;
  for (const auto& [is_used, count] : classes)
    size += is_used ? count : 0;
  constexpr int kHexadecimal = 16;
  return is_hex && size > kHexadecimal ? kHexadecimal : size;
}

/// The length of the shortest part that the token repeats from its beginning to its end.
std::size_t period_of(std::string_view token) {
  for (std::size_t period = 1; period < token.size(); ++period) {
    if (token.substr(period) == token.substr(0, token.size() - period)) return period;
  }
  return token.size();
}

}  // namespace

std::string why_guessable(std::string_view token) {
  const std::size_t period = period_of(token);
  if (token.size() > 1 && period <= token.size() / 2) {
    return fmt::format("repeats its first {} character{}", period, period == 1 ? "" : "s");
  }
  // 32 random hexadecimal digits have 14 different ones; fewer than 8 occur once in 10^7 times.
  constexpr std::size_t kFewest = 8;
  const std::size_t different = std::set<char>(token.begin(), token.end()).size();
  const int alphabet = size_of_alphabet(token);
  const double bits = static_cast<double>(token.size()) * std::log2(alphabet < 2 ? 2 : alphabet);
  if (bits < kBits) {
    return fmt::format(
        "has {} character{} of an alphabet of {}, {:.0f} bits at most, and {:.0f} keep guessers "
        "out",
        token.size(), token.size() == 1 ? "" : "s", alphabet, std::floor(bits), kBits);
  }
  if (different < kFewest) return fmt::format("has only {} different characters", different);
  return {};
}

}  // namespace dstrain
