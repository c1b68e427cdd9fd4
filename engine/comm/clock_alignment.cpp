#include "engine/comm/clock_alignment.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <sys/stat.h>

#include "engine/base/fnv_hash.h"
#include "kernels/core/caller_stream.h"
#include "kernels/core/trace_log.h"

namespace dstrain {
namespace {

constexpr int kExchanges = 24;

template <typename T>
Tensor bytes_of_values(T* values, std::size_t count) {
  return {values, DType::kU8, Shape{static_cast<std::int64_t>(count * sizeof(T))}};
}

template <typename T>
std::vector<T> gather_values(T mine, Communicator& world) {
  std::vector<T> all(static_cast<std::size_t>(world.size()));
  CallerStream host;
  world.all_gather(bytes_of_values(&mine, 1), bytes_of_values(all.data(), all.size()),
                   Purpose::kControl, host);
  return all;
}

/// Bounds of an offset.
struct Bounds {
  std::int64_t low = std::numeric_limits<std::int64_t>::min();
  std::int64_t high = std::numeric_limits<std::int64_t>::max();
};

/// The times that a rank tells in each exchange.
struct Stamps {
  std::int64_t begin = 0;
  std::int64_t last_end = 0;  ///< of the exchange before; 0: there was none
};

/// Called by two ranks, one for the other; bounds the caller's clock less the peer's.
Bounds compare_with(int peer, Communicator& world) {
  CallerStream host;
  Bounds bounds;
  Stamps mine;
  for (int exchange = 0; exchange < kExchanges; ++exchange) {
    Stamps theirs;
    const std::int64_t last_begin = mine.begin;
    mine.begin = TraceLog::now();
    const std::array messages = {
        P2p{P2p::Kind::kSend, peer, bytes_of_values(&mine, 1)},
        P2p{P2p::Kind::kReceive, peer, bytes_of_values(&theirs, 1)},
    };
    world.exchange(messages, Purpose::kControl, host);
    mine.last_end = TraceLog::now();
    bounds.high = std::min(bounds.high, mine.last_end - theirs.begin);
    if (theirs.last_end != 0) bounds.low = std::max(bounds.low, last_begin - theirs.last_end);
  }
  return bounds;
}

}  // namespace

std::uint64_t steady_clock_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (boot.empty()) return 0;
  struct stat time {};  // kernels without time namespaces have no such file, and one clock
  const bool has_namespaces = stat("/proc/self/ns/time", &time) == 0;
  return fnv_hash<std::uint64_t>(fmt::format("{} {}", boot, has_namespaces ? time.st_ino : 0));
}

ClockReading compare_clocks(Communicator& world, std::uint64_t clock) {
  struct Start {
    std::uint64_t clock;
    std::int64_t steady;
    std::int64_t utc;
  };
  const std::vector<Start> starts =
      gather_values(Start{.clock = clock,
                          .steady = TraceLog::now(),
                          .utc = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                     std::chrono::system_clock::now().time_since_epoch())
                                     .count()},
                    world);
  // The first rank with a clock reads it for all others that have the same.
  const auto reader_for = [&](int rank) {
    const std::uint64_t theirs = starts[static_cast<std::size_t>(rank)].clock;
    if (theirs == 0) return rank;
    return static_cast<int>(std::find_if(starts.begin(), starts.end(),
                                         [&](const Start& s) { return s.clock == theirs; }) -
                            starts.begin());
  };
  struct Offset {
    std::int64_t ns = 0;
    std::int64_t uncertainty = 0;
  };
  Offset mine;
  for (int rank = 1; rank < world.size(); ++rank) {
    if (reader_for(rank) != rank) continue;
    if (world.rank() == 0) {
      (void)compare_with(rank, world);
    } else if (world.rank() == rank) {
      const Bounds bounds = compare_with(0, world);
      mine = {.ns = bounds.low + (bounds.high - bounds.low) / 2,
              .uncertainty = (bounds.high - bounds.low) / 2};
    }
  }
  const std::vector<Offset> offsets = gather_values(mine, world);
  const Offset& own = offsets[static_cast<std::size_t>(reader_for(world.rank()))];
  return {.at_ns = TraceLog::now(),
          .offset_ns = own.ns,
          .uncertainty_ns = own.uncertainty,
          .zero_ns = starts.front().steady,
          .zero_utc_ns = starts.front().utc};
}

}  // namespace dstrain
