// Formats amounts for people: sizes in the unit that fits, counts with their noun.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dstrain {

/// "12.50 GiB", "382.1 MiB", "64 bytes".
std::string size_text(std::int64_t bytes);
/// Always in GiB, "0.38 GiB": sizes that stand side by side to be compared.
std::string gib_text(double bytes);
inline std::string gib_text(std::int64_t bytes) {
  return gib_text(static_cast<double>(bytes));
}

/// One unit for a table of sizes: the largest in which `largest` is at least 1.
struct SizeUnit {
  std::string_view name = "bytes";  ///< "GiB"
  std::int64_t bytes = 1;

  /// The number alone, with three decimals, "0.382"; bytes without decimals.
  [[nodiscard]] std::string number(std::int64_t amount) const;
};
SizeUnit unit_for(std::int64_t largest);

/// A time as a clock shows it, in minutes and seconds: "4:05", "1:02:03".
std::string clock_text(double seconds);

/// "1,008,038,758,400".
std::string grouped(std::int64_t number);

/// "1 rank", "384 ranks"; `plural` where it is more than an s.
std::string counted(std::int64_t count, std::string_view noun, std::string_view plural = {});

}  // namespace dstrain
