#include "engine/data/input/split_files.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include <xxhash.h>

namespace dstrain {

std::vector<bool> choose_validation(const std::vector<InputFile>& files,
                                    double fraction,
                                    std::uint64_t seed) {
  std::vector<std::uint64_t> hashes;
  std::int64_t total = 0;
  for (const InputFile& file : files) {
    hashes.push_back(XXH3_64bits_withSeed(file.name().data(), file.name().size(), seed));
    total += file.is_json_lines ? 0 : file.bytes;
  }
  std::vector<std::size_t> order(files.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::tuple(hashes[a], files[a].name(), a) < std::tuple(hashes[b], files[b].name(), b);
  });
  auto room = static_cast<std::int64_t>(fraction * static_cast<double>(total));
  std::vector<bool> is_validation(files.size(), false);
  for (const std::size_t i : order) {
    if (!files[i].is_json_lines && files[i].bytes > 0 && files[i].bytes <= room) {
      is_validation[i] = true;
      room -= files[i].bytes;
    }
  }
  return is_validation;
}

bool is_for_validation(const DocumentDigest& document, double fraction, std::uint64_t seed) {
  constexpr double kAll = 18446744073709551616.0;
  const std::uint64_t hash = XXH3_64bits_withSeed(&document, sizeof document, seed);
  return static_cast<double>(hash) < fraction * kAll;
}

}  // namespace dstrain
