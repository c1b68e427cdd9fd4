// Measures the cost of an all-reduce between processes of this host, by size, ranks and transport:
// Unix sockets, as ranks of a host use, and TCP with each of network.security's values, as ranks of
// different hosts do. The transports take turns, so that a machine that others use as well is
// equally slow for all.
//
//   bench_collectives [RANKS [SECONDS]]
//
// Prints the median time of each, and the median of what each takes over the way before it in the
// same turn.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "engine/comm/rendezvous.h"
#include "engine/comm/tcp_store.h"
#include "tests/harness/inline_stream.h"
#include "tests/harness/wire_here.h"

namespace dstrain {
namespace {

using Clock = std::chrono::steady_clock;

struct Way {
  const char* name;
  bool always_tcp;
  WireSecurity security;
};
constexpr std::array<Way, 4> kWays{Way{"Unix", false, WireSecurity::kAuthenticated},
                                   Way{"TCP, trusted", true, WireSecurity::kTrusted},
                                   Way{"TCP, authenticated", true, WireSecurity::kAuthenticated},
                                   Way{"TCP, encrypted", true, WireSecurity::kEncrypted}};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double seconds_of(Communicator& group, std::vector<float>& values) {
  InlineStream stream;
  const auto start = Clock::now();
  group.all_reduce({values.data(), DType::kF32, Shape{static_cast<std::int64_t>(values.size())}},
                   ReduceOp::kSum, Purpose::kGradient, stream);
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void run_rank(int rank, int ranks, std::uint16_t port, double seconds) {
  const auto store = make_tcp_store("127.0.0.1", port, "token");
  std::vector<int> everyone(static_cast<std::size_t>(ranks));
  std::iota(everyone.begin(), everyone.end(), 0);
  std::vector<std::unique_ptr<Rendezvous>> rendezvous;
  std::vector<std::unique_ptr<Communicator>> groups;
  for (const Way& way : kWays) {
    rendezvous.push_back(make_process_rendezvous(
        rank, ranks, *store, {.wire = wire_here(way.always_tcp, way.security)}));
    groups.push_back(rendezvous.back()->make_group(way.name, everyone));
  }
  for (const std::int64_t bytes : {4 << 10, 1 << 20, 64 << 20}) {
    std::vector<float> values(static_cast<std::size_t>(bytes) / sizeof(float), 1.0f);
    std::array<std::vector<double>, kWays.size()> times;
    std::array<std::vector<double>, kWays.size()> ratios;
    const auto begin = Clock::now();
    std::vector<float> more{1.0f};  // rank 0 says how long, so that all do as many turns
    while (more[0] > 0.0f) {
      constexpr int kTurns = 8;
      for (int turn = 0; turn < kTurns; ++turn) {
        for (std::size_t way = 0; way < kWays.size(); ++way) {
          times[way].push_back(seconds_of(*groups[way], values));
          if (way > 0) {
            ratios[way].push_back(times[way].back() / times[way - 1][times[way].size() - 1]);
          }
        }
      }
      std::fill(values.begin(), values.end(), 1.0f);
      more[0] = rank == 0 && std::chrono::duration<double>(Clock::now() - begin).count() < seconds
                    ? 1.0f
                    : 0.0f;
      (void)seconds_of(*groups[0], more);
    }
    if (rank != 0) {
      continue;
    }
    for (std::size_t way = 0; way < kWays.size(); ++way) {
      std::printf("%d ranks  %8lld bytes  %-20s %10.1f us", ranks, static_cast<long long>(bytes),
                  kWays[way].name, 1e6 * median(times[way]));
      if (way > 0) {
        std::printf("  x %.3f of \"%s\"", median(ratios[way]), kWays[way - 1].name);
      }
      std::printf("  (%zu turns)\n", times[way].size());
    }
    std::fflush(stdout);
  }
}

int run(int ranks, double seconds) {
  const TcpStoreServer server("127.0.0.1", 0, "token");
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      run_rank(rank, ranks, server.port(), seconds);
      std::_Exit(0);
    }
    children.push_back(child);
  }
  bool good = true;
  for (const pid_t child : children) {
    int status = 0;
    good = waitpid(child, &status, 0) == child && status == 0 && good;
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace dstrain

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 5.0;
  return dstrain::run(std::max(ranks, 2), seconds);
}
