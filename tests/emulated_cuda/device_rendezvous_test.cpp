// How a group's tensors travel between emulated GPUs: over NCCL or through the host's memory.
#include "engine/comm/device_rendezvous.h"

#include <atomic>
#include <cstdlib>
#include <thread>

#include <catch2/catch.hpp>

#include "engine/comm/staged_communicator.h"
#include "tests/emulated_cuda/nccl_ranks.h"
#include "tests/harness/captured_log.h"
#include "tests/harness/local_rendezvous.h"
#include "tests/harness/recording_communicator.h"

namespace dstrain::test {
namespace {

/// Ranks that share `gpus`, in turns; `body` is told what went through the host.
template <typename Body>
void run_sharing_ranks(int size, int gpus, Body&& body) {
  setenv("DSTRAIN_EMULATED_GPUS", std::to_string(gpus).c_str(), 1);
  const auto store = make_memory_store();
  const auto world = make_local_rendezvous(size);
  run_threads(size, [&](int rank) {
    const Backend backend = make_cuda_backend(rank % gpus);
    CollectiveLog through_host;
    RecordingRendezvous host(*world[static_cast<std::size_t>(rank)], through_host);
    const auto rendezvous = make_device_rendezvous(host, *store, *backend.device);
    body(*rendezvous, dynamic_cast<CudaDevice&>(*backend.device), through_host);
  });
}

TEST_CASE("ranks with a GPU each talk over NCCL, ranks that share one through the host, and say so",
          "[comm]") {
  const testing::CapturedLog log;
  std::atomic<int> wrong{0};
  run_sharing_ranks(4, 2, [&](Rendezvous& ranks, CudaDevice& device, CollectiveLog& through_host) {
    const int rank = ranks.world_rank();
    const auto sum_over = [&](const std::string& name, const std::vector<int>& members) {
      const auto group = ranks.make_group(name, members);
      const OnGpu<float> values(device, {static_cast<float>(rank), 1.0F});
      group->all_reduce(values.tensor(), ReduceOp::kSum, Purpose::kGradient,
                        device.compute_stream());
      float expected = 0.0F;
      for (const int member : members) {
        expected += static_cast<float>(member);
      }
      wrong += values.values() != std::vector{expected, static_cast<float>(members.size())};
      return through_host.count(Op::kAllReduce, Purpose::kGradient);
    };
    const int first = rank / 2 * 2;
    wrong += sum_over("pair of " + std::to_string(first), {first, first + 1}) != 0;
    wrong += sum_over("alone " + std::to_string(rank), {rank}) != 0;
    wrong += sum_over("across " + std::to_string(rank % 2), {rank % 2, rank % 2 + 2}) != 1;
  });
  CHECK(wrong == 0);
  CHECK(log.lines_with("through the host's memory and not NCCL") == 2);
  CHECK_THAT(log.text(), Catch::Contains("group \"across 1\" talks through the host's memory and "
                                         "not NCCL: ranks 1 and 3 compute on one device, GPU-02"));
}

TEST_CASE("a group of one copies on its GPU", "[comm]") {
  run_sharing_ranks(1, 1, [&](Rendezvous& ranks, CudaDevice& device, CollectiveLog&) {
    const std::vector<int> me{0};
    const auto group = ranks.make_group("alone", me);
    const OnGpu<float> in(device, {1.0F, 2.0F});
    const OnGpu<float> out(device, {0.0F, 0.0F});
    group->all_gather(in.tensor(), out.tensor(), Purpose::kParameter, device.compute_stream());
    CHECK(out.values() == std::vector{1.0F, 2.0F});
  });
}

TEST_CASE("what goes through the host waits for the stream, and later work for it", "[comm]") {
  std::atomic<int> wrong{0};
  run_sharing_ranks(2, 1, [&](Rendezvous& ranks, CudaDevice& device, CollectiveLog&) {
    const std::vector<int> both{0, 1};
    const auto group = ranks.make_group("both", both);
    constexpr std::int64_t kElements = 5'000'000;  // more than is staged at once
    Stream& stream = device.compute_stream();
    const OnGpu<float> values(device, std::vector<float>(kElements, 7.0F));
    std::vector<float> mine(kElements);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      mine[i] = static_cast<float>((ranks.world_rank() + 1) * static_cast<int>(i % 1000));
    }
    stream.enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds{50}); });
    device.copy_from_host(mine.data(), values.tensor(), stream);
    group->all_reduce(values.tensor(), ReduceOp::kSum, Purpose::kGradient, stream);
    const std::vector<float> got = values.values();
    for (std::size_t i = 0; i < got.size(); ++i) {
      wrong += got[i] != static_cast<float>(3 * static_cast<int>(i % 1000));
    }
  });
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace dstrain::test
