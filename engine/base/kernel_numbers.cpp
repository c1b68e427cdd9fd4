#include "engine/base/kernel_numbers.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

namespace dstrain {

std::optional<std::int64_t> number_in(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::uint64_t number = 0;
  if (!(in >> number)) return std::nullopt;
  return static_cast<std::int64_t>(std::min<std::uint64_t>(number, INT64_MAX));
}

std::optional<std::int64_t> number_after(const std::filesystem::path& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string word;
    std::int64_t number = 0;
    if (words >> word >> number && word == key) return number;
  }
  return std::nullopt;
}

}  // namespace dstrain
