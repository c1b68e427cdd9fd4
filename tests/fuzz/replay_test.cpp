// Every fuzz target with its seeds, and with what a few thousand small changes make of them: with
// each build, any compiler and any sanitizer. scripts/fuzz looks further.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <catch2/catch.hpp>
#include <spdlog/spdlog.h>

#include "kernels/math/philox.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/harness/sweep.h"

namespace dstrain::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLargest = 64 << 10;
constexpr std::uint32_t kChanges = 400;  // of each seed

std::vector<std::vector<std::byte>> seeds_of(const FuzzTarget& target) {
  std::vector<std::vector<std::byte>> seeds;
  for (const fs::path& folder : target.seeds) {
    std::error_code none;
    for (const auto& entry : fs::recursive_directory_iterator(folder, none)) {
      const std::string extension = entry.path().extension();
      const bool golden = folder.string().find("golden") != std::string::npos;
      const bool of_target =
          extension == (std::string_view(target.name) == "torch" ? ".pt" : ".safetensors");
      if (!entry.is_regular_file() || (golden && !of_target)) continue;
      std::ifstream in(entry.path(), std::ios::binary);
      const std::vector<char> text{std::istreambuf_iterator<char>(in), {}};
      const auto bytes = std::as_bytes(std::span(text));
      // The beginning of a large file: its header, and data that ends too early.
      seeds.emplace_back(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(
                                                            std::min(bytes.size(), kLargest)));
    }
  }
  return seeds;
}

/// A few bytes overwritten, repeated or taken out, or the end cut off.
std::vector<std::byte> changed(std::vector<std::byte> bytes, std::uint32_t change) {
  auto pick = [&, drawn = std::uint32_t{0}](std::size_t below) mutable {
    const auto share = static_cast<double>(uniform_from(philox(/*key=*/7, change, drawn++)[0]));
    return std::min(static_cast<std::size_t>(share * static_cast<double>(below)), below - 1);
  };
  for (std::size_t i = 0, count = 1 + pick(4); i < count && !bytes.empty(); ++i) {
    const auto at = bytes.begin() + static_cast<std::ptrdiff_t>(pick(bytes.size()));
    switch (pick(5)) {
      case 0:
        *at = static_cast<std::byte>(pick(256));
        break;
      case 1:
        *at ^= static_cast<std::byte>(1U << pick(8));
        break;
      case 2:
        bytes.erase(at, at + std::min<std::ptrdiff_t>(bytes.end() - at,
                                                      static_cast<std::ptrdiff_t>(1 + pick(16))));
        break;
      case 3: {
        const std::vector<std::byte> part(at, at + std::min<std::ptrdiff_t>(bytes.end() - at, 16));
        bytes.insert(at, part.begin(), part.end());
        break;
      }
      default:
        if (pick(8) == 0) bytes.erase(at, bytes.end());
    }
  }
  return bytes;
}

TEST_CASE("no change of a real file makes its reader do more than refuse it", "[fuzz]") {
  const auto step = static_cast<std::uint32_t>(testing::one_in_if_sanitized(7));
  const spdlog::level::level_enum level = spdlog::get_level();
  spdlog::set_level(spdlog::level::off);
  for (const FuzzTarget& target : all_targets()) {
    CAPTURE(target.name);
    const std::vector<std::vector<std::byte>> seeds = seeds_of(target);
    REQUIRE_FALSE(seeds.empty());
    target.run({});
    for (std::size_t seed = 0; seed < seeds.size(); ++seed) {
      CAPTURE(seed);
      CHECK_NOTHROW(target.run(seeds[seed]));
      for (std::uint32_t change = 0; change < kChanges; change += step) {
        CAPTURE(change);
        const std::vector<std::byte> bytes = changed(seeds[seed], change);
        try {
          target.run(bytes);
        } catch (const std::exception& error) {
          FAIL_CHECK(target.name << ", seed " << seed << ", change " << change << ": "
                                 << error.what());
        }
      }
    }
  }
  spdlog::set_level(level);
}

}  // namespace
}  // namespace dstrain::fuzz
