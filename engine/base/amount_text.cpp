#include "engine/base/amount_text.h"

#include <array>

#include <fmt/format.h>

namespace dstrain {

std::string size_text(std::int64_t bytes) {
  constexpr double kKiB = 1024.0;
  const auto value = static_cast<double>(bytes);
  if (value < kKiB) {
    return fmt::format("{} bytes", bytes);
  }
  if (value < kKiB * kKiB) {
    return fmt::format("{:.1f} KiB", value / kKiB);
  }
  if (value < kKiB * kKiB * kKiB) {
    return fmt::format("{:.1f} MiB", value / (kKiB * kKiB));
  }
  return gib_text(value);
}

std::string gib_text(double bytes) {
  return fmt::format("{:.2f} GiB", bytes / 0x1p30);
}

std::string SizeUnit::number(std::int64_t amount) const {
  return bytes == 1
             ? fmt::format("{}", amount)
             : fmt::format("{:.3f}", static_cast<double>(amount) / static_cast<double>(bytes));
}

SizeUnit unit_for(std::int64_t largest) {
  constexpr std::array<std::string_view, 3> kLarger = {"KiB", "MiB", "GiB"};
  SizeUnit unit;
  for (const std::string_view name : kLarger) {
    if (largest / 1024 < unit.bytes) {
      break;
    }
    unit = {.name = name, .bytes = unit.bytes * 1024};
  }
  return unit;
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  return whole >= 3600 ? fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
                       : fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string grouped(std::int64_t number) {
  std::string text = fmt::format("{}", number);
  const std::size_t sign = number < 0 ? 1 : 0;
  for (std::size_t i = text.size(); i > 3 + sign; i -= 3) {
    text.insert(i - 3, ",");
  }
  return text;
}

std::string counted(std::int64_t count, std::string_view noun, std::string_view plural) {
  if (count == 1) {
    return fmt::format("1 {}", noun);
  }
  return plural.empty() ? fmt::format("{} {}s", count, noun) : fmt::format("{} {}", count, plural);
}

}  // namespace dstrain
