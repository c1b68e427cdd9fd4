#include "engine/runtime/disk/disk_speed.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "engine/base/amount_text.h"

namespace dstrain {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kLeastFileBytes = std::int64_t{1} << 30;  // of a smaller one, any will do
constexpr std::int64_t kMeasuredBytes = std::int64_t{96} << 20;

struct Rates {
  double read = 0.0;  ///< bytes a second
  double written = 0.0;
  [[nodiscard]] double seconds_a_byte() const { return 1.0 / read + 1.0 / written; }
};

Rates measure(const ScratchFile& file,
              std::span<std::byte> memory,
              const DiskQueueOptions& options) {
  DiskQueue queue(file, options);
  const auto size = std::min<std::int64_t>(std::ssize(memory), kMeasuredBytes);
  const auto seconds_of = [&](auto&& transfer) {
    const auto begin = Clock::now();
    for (std::int64_t at = 0; at + size <= kMeasuredBytes; at += size) {
      queue.wait(transfer(at));
    }
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const auto bytes = static_cast<double>(kMeasuredBytes / size * size);
  Rates rates;
  rates.written =
      bytes / seconds_of([&](std::int64_t at) { return queue.write(at, memory.data(), size); });
  rates.read =
      bytes / seconds_of([&](std::int64_t at) { return queue.read(at, memory.data(), size); });
  return rates;
}

}  // namespace

DiskQueueOptions choose_queue_options(const ScratchFile& file,
                                      std::span<std::byte> memory,
                                      std::optional<std::int64_t> block_bytes,
                                      std::optional<int> depth) {
  DiskQueueOptions defaults;
  if (block_bytes) {
    block_bytes = ScratchFile::in_blocks(*block_bytes);
  }
  defaults.block_bytes = block_bytes.value_or(defaults.block_bytes);
  defaults.depth = depth.value_or(defaults.depth);
  if (file.bytes() < kLeastFileBytes || (block_bytes && depth)) {
    return defaults;
  }
  std::vector<DiskQueueOptions> candidates;
  for (const std::int64_t block :
       {std::int64_t{1} << 18, std::int64_t{1} << 20, std::int64_t{1} << 22}) {
    for (const int blocks : {8, 32}) {
      candidates.push_back(
          {.block_bytes = block_bytes.value_or(block), .depth = depth.value_or(blocks)});
    }
  }
  (void)measure(file, memory, defaults);  // fresh space is slower the first time it is written
  DiskQueueOptions best = defaults;
  Rates rates;
  for (const DiskQueueOptions& candidate : candidates) {
    const Rates found = measure(file, memory, candidate);
    if (rates.read == 0.0 || found.seconds_a_byte() < rates.seconds_a_byte()) {
      best = candidate;
      rates = found;
    }
  }
  spdlog::info("{} reads {}/s and writes {}/s, in blocks of {}, {} at once", file.folder().string(),
               size_text(static_cast<std::int64_t>(rates.read)),
               size_text(static_cast<std::int64_t>(rates.written)), size_text(best.block_bytes),
               best.depth);
  return best;
}

}  // namespace dstrain
