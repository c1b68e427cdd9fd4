// Members that do not come, over emulated NCCL: to a group, to a collective, to the same one. Every
// wait ends, with a sentence that says which group, operation and rank, and nothing of NCCL's is
// left behind.
#include <array>
#include <atomic>
#include <thread>

#include <catch2/catch.hpp>

#include "tests/emulated_cuda/emulated_nccl.h"
#include "tests/emulated_cuda/nccl_outcome.h"

namespace dstrain::test {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using Clock = std::chrono::steady_clock;

std::string outcome_of_forming(int device, int rank, Store& store) {
  REQUIRE(num_gpus() == 4);
  const Backend backend = make_cuda_backend(device);
  return outcome([&] {
    (void)make_nccl_communicator({.name = "data", .members = {4, 7}, .rank = rank}, store,
                                 *backend.device, {.connect_timeout = 150ms});
  });
}

TEST_CASE("a group whose member does not join is a Timeout that names it", "[nccl]") {
  CHECK_THAT(outcome_of_forming(0, 0, *make_memory_store()),
             Contains("Timeout: forming group \"data\" on rank 0 of 2 over NCCL 2.18.1") &&
                 Contains("rank(s) 7 of the job did not join within 0.15 s"));
  CHECK_THAT(outcome_of_forming(0, 1, *make_memory_store()),
             Contains("Timeout: forming group \"data\"") &&
                 Contains("rank 4 of the job, its first, did not come within 0.15 s"));
  CHECK(emulated::num_live_nccl_comms() == 0);
}

TEST_CASE("two ranks on one GPU are refused by NCCL, and told", "[nccl]") {
  const auto store = make_memory_store();
  std::array<std::string, 2> told;
  const auto start = Clock::now();
  run_threads(2, [&](int rank) {
    told[static_cast<std::size_t>(rank)] = outcome_of_forming(0, rank, *store);
  });
  CHECK_THAT(told[0] + told[1],
             Contains("CudaError: forming group \"data\"") && Contains("said by the emulation"));
  CHECK(seconds_since(start) < 2.0);  // the other one leaves the group that it believed to have
  CHECK(emulated::num_live_nccl_comms() == 0);
}

/// Rank 2 of three does not come to the collective after `before` of them.
void check_absent_member(int before) {
  std::array<std::string, 3> waited;
  std::array<std::string, 3> later;
  std::atomic<int> done{0};
  const auto start = Clock::now();
  run_nccl_ranks(
      3, [](int) { return with_timeout(kTimeout); },
      [&](const NcclRank& rank) {
        const auto at = static_cast<std::size_t>(rank.rank());
        const OnGpu<float> values(rank.device, std::vector<float>(3));
        const std::unique_ptr<Stream> side = rank.device.make_side_stream("communication");
        for (int i = 0; i < before; ++i) {
          all_reduce(rank, values, *side);
        }
        if (rank.rank() == 2) {
          side->synchronize();
          wait_for(done, 2);
        } else {
          waited[at] = outcome([&] {
            all_reduce(rank, values, *side);
            rank.stream().wait(side->record());
            rank.stream().synchronize();
          });
          ++done;
        }
        later[at] = outcome([&] {
          all_reduce(rank, values, rank.stream());
          rank.stream().synchronize();
        });
      });
  for (const std::size_t rank : {0U, 1U}) {
    CHECK_THAT(
        waited[rank],
        Contains("Timeout: all_reduce(f32[3], sum, gradient) (12 bytes) in group \"data\"") &&
            Contains("of 3: not done 0.8") && Contains("rank(s) 2 of the job have not reached it"));
    CHECK_THAT(later[rank], Contains("Timeout: all_reduce(f32[3], sum, gradient)"));
  }
  CHECK_THAT(waited[0], Contains("rank(s) 1 of the job wait in it too"));
  CHECK_THAT(later[2], Contains("PeerLost: ") && Contains("a member gave up") &&
                           Contains("rank(s) 2 of the job have not reached it"));
  CHECK(seconds_since(start) < 5.0);
  CHECK(emulated::num_live_nccl_comms() == 0);
}

TEST_CASE("a member that does not come to a collective is a Timeout for all who wait", "[nccl]") {
  check_absent_member(3);
}

TEST_CASE("so it is at the first collective, where NCCL keeps the host waiting", "[nccl]") {
  check_absent_member(0);
}

TEST_CASE("a call of NCCL's that does not come back is a Timeout too", "[nccl]") {
  std::array<std::string, 2> told;
  const auto start = Clock::now();
  run_nccl_ranks(
      2, [](int) { return with_timeout(kTimeout); },
      [&](const NcclRank& rank) {
        const OnGpu<float> values(rank.device, {1.0F});
        rank.group.barrier();
        if (rank.rank() == 0) {
          emulated::block_nccl_calls(0);
        }
        told[static_cast<std::size_t>(rank.rank())] = outcome([&] {
          all_reduce(rank, values, rank.stream());
          rank.stream().synchronize();
        });
      });
  CHECK_THAT(told[0], Contains("Timeout: all_reduce(f32[1]"));
  CHECK_THAT(told[1], Contains("Timeout: all_reduce(f32[1]"));
  CHECK(seconds_since(start) < 5.0);
  CHECK(emulated::num_live_nccl_comms() == 0);
}

TEST_CASE("members whose calls differ over NCCL get both in the error at the deadline", "[nccl]") {
  std::array<std::string, 2> told;
  run_nccl_ranks(
      2, [](int) { return with_timeout(kTimeout); },
      [&](const NcclRank& rank) {
        const OnGpu<float> values(rank.device, std::vector<float>(9));
        told[static_cast<std::size_t>(rank.rank())] = outcome([&] {
          const Tensor part = values.tensor().flat(0, rank.rank() == 0 ? 8 : 9);
          rank.group.all_reduce(part, ReduceOp::kSum, Purpose::kGradient, rank.stream());
          rank.stream().synchronize();
        });
      });
  const std::string& one = told[0].starts_with("InternalError") ? told[0] : told[1];
  CHECK_THAT(one, Contains("InternalError: ") && Contains("all_reduce(f32[8], sum, gradient)") &&
                      Contains("waits in all_reduce(f32[") && Contains("all_reduce(f32[9]"));
}

TEST_CASE("who was late once is not said to wait there for ever", "[nccl]") {
  std::string waited;
  std::atomic<int> done{0};
  run_nccl_ranks(
      2, [](int) { return with_timeout(kTimeout); },
      [&](const NcclRank& rank) {
        const OnGpu<float> values(rank.device, std::vector<float>(5));
        if (rank.rank() == 0) {
          std::this_thread::sleep_for(kTimeout / 2);  // rank 1 says meanwhile that it waits
        }
        const std::vector<P2p> messages{{rank.rank() == 0 ? P2p::Kind::kSend : P2p::Kind::kReceive,
                                         1 - rank.rank(), values.tensor()}};
        rank.group.exchange(messages, Purpose::kActivation, rank.stream());
        rank.stream().synchronize();
        if (rank.rank() == 0) {
          waited = outcome([&] {
            all_reduce(rank, values, rank.stream());
            rank.stream().synchronize();
          });
          ++done;
        } else {
          wait_for(done, 1);
        }
      });
  CHECK_THAT(waited, Contains("Timeout: ") &&
                         Contains("rank(s) 1 of the job have not reached it") &&
                         !Contains("exchange"));
}

TEST_CASE("an exchange whose other end does not come is a Timeout", "[nccl]") {
  std::string waited;
  std::atomic<int> done{0};
  run_nccl_ranks(
      2, [](int) { return with_timeout(kTimeout); },
      [&](const NcclRank& rank) {
        const OnGpu<float> values(rank.device, std::vector<float>(5));
        if (rank.rank() == 0) {
          waited = outcome([&] {
            const std::vector<P2p> messages{{P2p::Kind::kReceive, 1, values.tensor()}};
            rank.group.exchange(messages, Purpose::kActivation, rank.stream());
            rank.stream().synchronize();
          });
          ++done;
        } else {
          wait_for(done, 1);
        }
      });
  CHECK_THAT(waited, Contains("Timeout: exchange(u8[20], activation)"));
  CHECK(emulated::num_live_nccl_comms() == 0);
}

TEST_CASE("what is queued behind long work is not late", "[nccl]") {
  run_nccl_ranks(
      2, [](int) { return with_timeout(400ms); },
      [&](const NcclRank& rank) {
        const OnGpu<float> values(rank.device, {1.0F});
        rank.group.barrier();
        rank.stream().enqueue([] { std::this_thread::sleep_for(900ms); });
        all_reduce(rank, values, rank.stream());
        if (values.values()[0] != 2.0F) {
          throw std::runtime_error("not summed");
        }
      });
  CHECK(emulated::num_live_nccl_comms() == 0);
}

}  // namespace
}  // namespace dstrain::test
