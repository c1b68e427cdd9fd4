// The memory that a process reports, and how it appears at the end of a run.
#include "engine/train/resident_memory.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/mapped_file.h"
#include "engine/train/observers/end_report.h"

namespace dstrain::test {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kBlock = 64 * kMiB;
constexpr std::int64_t kSlack = 4 * kMiB;  // the kernel counts pages in batches

/// Bytes that are touched and then given back.
class TouchedMemory {
 public:
  explicit TouchedMemory(int sharing)
      : data_(mmap(nullptr, kBlock, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | sharing, -1, 0)) {
    REQUIRE(data_ != MAP_FAILED);
    std::memset(data_, 1, kBlock);
  }
  TouchedMemory(const TouchedMemory&) = delete;
  TouchedMemory& operator=(const TouchedMemory&) = delete;
  ~TouchedMemory() { munmap(data_, kBlock); }

 private:
  void* data_;
};

std::int64_t distance(std::int64_t a, std::int64_t b) {
  return std::abs(a - b);
}

// [slow]: not under sanitizers, which keep memory of their own.
TEST_CASE("a process's own memory is what it writes, not the files it maps",
          "[train][memory][slow]") {
  const ResidentMemory before = resident_memory();
  CHECK(before.own_bytes > 0);
  for (const int sharing : {MAP_PRIVATE, MAP_SHARED}) {
    CAPTURE(sharing);
    const TouchedMemory memory(sharing);
    CHECK(distance(resident_memory().own_bytes, before.own_bytes + kBlock) < kSlack);
  }
  CHECK(distance(resident_memory().own_bytes, before.own_bytes) < kSlack);

  const auto path =
      std::filesystem::temp_directory_path() / ("dstrain-mapped-" + std::to_string(getpid()));
  std::ofstream(path) << std::string(static_cast<std::size_t>(kBlock), 'x');
  const std::int64_t peak_before = resident_memory().peak_bytes;
  {
    const auto file = MappedFile::open<std::runtime_error>(path.string());
    const TouchedMemory memory(MAP_PRIVATE);
    const auto bytes = file.bytes();
    const std::int64_t sum = std::accumulate(
        bytes.begin(), bytes.end(), std::int64_t{0},
        [](std::int64_t total, std::byte byte) { return total + std::to_integer<int>(byte); });
    CHECK(sum == kBlock * 'x');
    CHECK(distance(resident_memory().own_bytes, before.own_bytes + kBlock) < kSlack);
    CHECK(resident_memory().peak_bytes > peak_before + kBlock / 2);  // the kernel's counts files
  }
  std::filesystem::remove(path);
}

TEST_CASE("the fullest rank speaks for all", "[train][memory]") {
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  const RankMemory small{.planned_bytes = kGiB, .overhead_bytes = kGiB / 4, .peak_bytes = kGiB};
  const RankMemory large{
      .planned_bytes = 2 * kGiB, .overhead_bytes = kGiB / 2, .peak_bytes = 9 * kGiB / 4};
  CHECK(
      memory_text(std::vector{small, large, small}) ==
      "planned 2.00 GiB + 512.0 MiB overhead, measured peak 2.25 GiB on rank 1, which holds most");
  CHECK(memory_text(std::vector{small}) ==
        "planned 1.00 GiB + 256.0 MiB overhead, measured peak 1.00 GiB");
}

TEST_CASE("the report says how often each source was gone through", "[train][data]") {
  CHECK(epochs_text({{.prefix = "data/a"}}, {1.3}) == "1.30 epochs of data/a");
  CHECK(epochs_text({{.prefix = "a"}, {.prefix = "b"}}, {0.5, 2.0}) ==
        "0.50 epochs of a, 2.00 of b");
  const std::vector<DataSource> many(10, {.prefix = "x"});
  const std::string text = epochs_text(many, {1, 1, 1, 1, 1, 1, 1, 1, 0.25, 3});
  CHECK_THAT(text, Catch::EndsWith("1.00 of x and 2 others; 0.25 to 3.00 of all"));
}

}  // namespace
}  // namespace dstrain::test
