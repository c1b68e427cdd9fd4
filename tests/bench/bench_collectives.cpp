// Measures the cost of an all-reduce between processes of this host, by size, ranks and transport:
// shared memory, as ranks of a host use; Unix sockets, as they use where there is none; and TCP
// with each of network.security's values, as ranks of different hosts do. The transports take
// turns, so that a machine that others use as well is equally slow for all.
//
//   bench_collectives [RANKS [SECONDS [WAYS [HOSTS]]]]
//
// WAYS: only the first so many. HOSTS: ranks that use shared memory or Unix sockets think
// themselves on so many hosts, as many ranks on each, and reach those of other hosts through TCP:
// what crosses the network can be told by making the loopback interface slow, in a network
// namespace of its own (unshare -n; ip link set lo up; tc qdisc add dev lo root tbf rate 1gbit
// burst 1mb latency 100ms).
//
// Prints the median time of each, and the median of what each takes over the way before it in the
// same turn; and for the largest size the rate, bytes of the buffer over time, as a share of the
// rate of this machine's memory (machine_peak.h), measured with a thread a rank before and after.
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
#include "kernels/backend.h"
#include "tests/bench/machine_peak.h"
#include "tests/harness/inline_stream.h"
#include "tests/harness/wire_here.h"

namespace dstrain {
namespace {

using Clock = std::chrono::steady_clock;

struct Way {
  const char* name;
  HostPath on_one_host;
  WireSecurity security;
};
constexpr std::array<Way, 5> kWays{
    Way{"shared memory", HostPath::kSharedMemory, WireSecurity::kAuthenticated},
    Way{"Unix", HostPath::kUnixSocket, WireSecurity::kAuthenticated},
    Way{"TCP, trusted", HostPath::kTcp, WireSecurity::kTrusted},
    Way{"TCP, authenticated", HostPath::kTcp, WireSecurity::kAuthenticated},
    Way{"TCP, encrypted", HostPath::kTcp, WireSecurity::kEncrypted}};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double seconds_of(Communicator& group, Tensor values) {
  InlineStream stream;
  const auto start = Clock::now();
  group.all_reduce(values, ReduceOp::kSum, Purpose::kGradient, stream);
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void run_rank(
    int rank, int ranks, std::uint16_t port, double seconds, std::size_t ways, int hosts) {
  const auto store = make_tcp_store("127.0.0.1", port, "token");
  std::vector<int> everyone(static_cast<std::size_t>(ranks));
  std::iota(everyone.begin(), everyone.end(), 0);
  std::vector<std::unique_ptr<Rendezvous>> rendezvous;
  std::vector<std::unique_ptr<Communicator>> groups;
  for (std::size_t way = 0; way < ways; ++way) {
    WireOptions wire = wire_here(kWays[way].on_one_host, kWays[way].security);
    wire.host = rank * hosts / ranks;
    rendezvous.push_back(make_process_rendezvous(rank, ranks, *store, {.wire = wire}));
    groups.push_back(rendezvous.back()->make_group(kWays[way].name, everyone));
  }
  const auto memory_rate_now = [&] {  // of the others' processors too: they wait for this one
    const double rate = rank == 0 ? bench::memory_rate(ranks) : 0.0;
    groups[0]->barrier();
    return rate;
  };
  constexpr std::int64_t kSizes[] = {4 << 10, 1 << 20, 64 << 20};
  const Backend backend = make_cpu_backend(1);
  const DeviceMemory memory = backend.device->allocate(kSizes[2], "the tensors");
  double more = 0.0;  // rank 0 says how long, so that all do as many turns
  for (const std::int64_t bytes : kSizes) {
    const bool is_largest = bytes == kSizes[2];
    const Tensor values(memory.data(), DType::kF32, Shape{bytes / size_of(DType::kF32)});
    auto* const floats = static_cast<float*>(memory.data());
    std::fill(floats, floats + values.numel(), 1.0F);
    double memory_rate = is_largest ? memory_rate_now() : 0.0;
    std::array<std::vector<double>, kWays.size()> times;
    std::array<std::vector<double>, kWays.size()> ratios;
    const auto begin = Clock::now();
    do {
      constexpr int kTurns = 8;
      for (int turn = 0; turn < kTurns; ++turn) {
        for (std::size_t way = 0; way < ways; ++way) {
          times[way].push_back(seconds_of(*groups[way], values));
          if (way > 0) {
            ratios[way].push_back(times[way].back() / times[way - 1][times[way].size() - 1]);
          }
        }
      }
      std::fill(floats, floats + values.numel(), 1.0F);
      more = rank == 0 && std::chrono::duration<double>(Clock::now() - begin).count() < seconds
                 ? 1.0
                 : 0.0;
      (void)seconds_of(*groups[0], {&more, DType::kF64, Shape{1}});
    } while (more > 0.0);
    if (is_largest) {
      memory_rate = std::max(memory_rate, memory_rate_now());
    }
    if (rank != 0) {
      continue;
    }
    for (std::size_t way = 0; way < ways; ++way) {
      const double taken = median(times[way]);
      std::printf("%d ranks  %8lld bytes  %-20s %10.1f us", ranks, static_cast<long long>(bytes),
                  kWays[way].name, 1e6 * taken);
      if (way > 0) {
        std::printf("  x %.3f of \"%s\"", median(ratios[way]), kWays[way - 1].name);
      }
      if (is_largest) {
        const double rate = static_cast<double>(bytes) / taken;
        std::printf("  %.2f GB/s, %.1f %% of memory's %.1f GB/s", 1e-9 * rate,
                    100.0 * rate / memory_rate, 1e-9 * memory_rate);
      }
      std::printf("  (%zu turns)\n", times[way].size());
    }
    std::fflush(stdout);
  }
}

int run(int ranks, double seconds, std::size_t ways, int hosts) {
  const TcpStoreServer server("127.0.0.1", 0, "token");
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      run_rank(rank, ranks, server.port(), seconds, ways, hosts);
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
  const auto all = dstrain::kWays.size();
  const auto ways = argc > 3 ? static_cast<std::size_t>(std::max(std::atoi(argv[3]), 1)) : all;
  const int hosts = argc > 4 ? std::atoi(argv[4]) : 1;
  return dstrain::run(std::max(ranks, 2), seconds, std::min(ways, all), std::max(hosts, 1));
}
