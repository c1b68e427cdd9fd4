// Members and connections that are lost, over emulated NCCL: who waits for them learns it, on every
// rank; and what the launcher sees of those who wait.
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

TEST_CASE("an error of NCCL's own ends the wait with PeerLost, for the others too", "[nccl]") {
  std::array<std::string, 3> told;
  run_nccl_ranks(3, [&](const NcclRank& rank) {
    const OnGpu<float> values(rank.device, {1.0F});
    rank.group.barrier();
    std::jthread breaks;
    if (rank.rank() == 0) {
      breaks = std::jthread([] {
        std::this_thread::sleep_for(100ms);
        emulated::set_nccl_async_error(0, ncclRemoteError);
      });
    }
    const auto start = Clock::now();
    if (rank.rank() == 2) {
      std::this_thread::sleep_for(500ms);
    }
    told[static_cast<std::size_t>(rank.rank())] = outcome([&] {
      all_reduce(rank, values, rank.stream());
      rank.stream().synchronize();
    });
    if (seconds_since(start) > 5.0) {
      throw std::runtime_error("told too late");
    }
  });
  CHECK_THAT(told[0],
             Contains("PeerLost: all_reduce(f32[1]") && Contains("remote process exited (said by"));
  CHECK_THAT(told[1], Contains("PeerLost: all_reduce(f32[1]") && Contains("a member gave up") &&
                          Contains("rank 0 of the job") && Contains("remote process exited"));
  CHECK_THAT(told[2], Contains("PeerLost"));
  CHECK(emulated::num_live_nccl_comms() == 0);
}

TEST_CASE("abort over NCCL wakes every member with PeerLost, and later calls fail", "[nccl]") {
  std::array<std::string, 3> waited;
  std::array<std::string, 3> later;
  run_nccl_ranks(
      3, [](int) { return with_timeout(4s); },
      [&](const NcclRank& rank) {
        const auto at = static_cast<std::size_t>(rank.rank());
        const OnGpu<float> values(rank.device, std::vector<float>(100));
        rank.group.barrier();
        const auto start = Clock::now();
        std::jthread aborter;
        if (rank.rank() == 0) {
          aborter = std::jthread([&] {
            std::this_thread::sleep_for(50ms);
            rank.group.abort();
          });
        }
        if (rank.rank() != 2) {  // rank 2 never joins in
          waited[at] = outcome([&] {
            all_reduce(rank, values, rank.stream());
            rank.stream().synchronize();
          });
          if (seconds_since(start) > 3.0) {
            throw std::runtime_error("woken too late");
          }
        } else {
          std::this_thread::sleep_for(300ms);
        }
        later[at] = outcome([&] { rank.group.barrier(); });
      });
  CHECK_THAT(waited[0], Contains("PeerLost: all_reduce(f32[100]") && Contains("was aborted"));
  CHECK_THAT(waited[1], Contains("PeerLost: ") && Contains("rank 0 of the job"));
  for (const std::string& message : later) {
    CHECK_THAT(message, Contains("PeerLost: "));
  }
  CHECK(emulated::num_live_nccl_comms() == 0);
}

TEST_CASE("a member that fails elsewhere does not keep the others waiting", "[nccl]") {
  std::string told;
  const auto start = Clock::now();
  const std::string why = thrown<std::runtime_error>([&] {
    run_nccl_ranks(2, [&](const NcclRank& rank) {
      const OnGpu<float> values(rank.device, {1.0F});
      rank.group.barrier();
      if (rank.rank() == 1) {
        throw std::runtime_error("the disk is full");
      }
      told = outcome([&] {
        all_reduce(rank, values, rank.stream());
        rank.stream().synchronize();
      });
    });
  });
  CHECK(why == "the disk is full");
  CHECK_THAT(told, Contains("PeerLost: ") && Contains("rank 1 of the job: it left the group"));
  CHECK(seconds_since(start) < 6.0);
  CHECK(emulated::num_live_nccl_comms() == 0);
}

TEST_CASE("the end of one group ends a rank's others", "[nccl]") {
  std::array<std::string, 2> told;
  run_nccl_ranks(
      2, [](int) { return with_timeout(kTimeout); },
      [&](const NcclRank& rank) {
        const auto other =
            make_nccl_communicator({.name = "tensor", .members = {0, 1}, .rank = rank.rank()},
                                   rank.store, rank.device, patient());
        const OnGpu<float> values(rank.device, {1.0F});
        other->barrier();
        rank.group.barrier();
        if (rank.rank() == 0) {
          (void)outcome([&] {
            all_reduce(rank, values, rank.stream());
            rank.stream().synchronize();
          });
          std::this_thread::sleep_for(300ms);
        }
        const auto start = Clock::now();
        told[static_cast<std::size_t>(rank.rank())] = outcome([&] { other->barrier(); });
        if (seconds_since(start) > 5.0) {
          throw std::runtime_error("told too late");
        }
      });
  CHECK_THAT(told[0], Contains("Timeout: all_reduce(f32[1]") && Contains("group \"data\""));
  CHECK_THAT(told[1], Contains("PeerLost: ") && Contains("group \"tensor\"") &&
                          Contains("rank 0 of the job"));
  CHECK(emulated::num_live_nccl_comms() == 0);
}

/// The state of a rank as the launcher would see it.
class Seen final : public ActivityRecorder {
 public:
  int add_group(const std::string& name) override {
    group_ = name;
    return 5;
  }
  void begin_collective(int group, Op op, Purpose purpose) noexcept override {
    is_right_ = is_right_ && group == 5 && !under_way_ && op == Op::kAllReduce &&
                purpose == Purpose::kGradient;
    under_way_ = true;
    ++begun_;
  }
  void end_collective(int /*group*/) noexcept override { under_way_ = false; }
  void begin_wait() noexcept override {}
  void end_wait() noexcept override {}
  void begin_phase(RunPhase /*phase*/) noexcept override {}
  void finish_step(std::int64_t /*step*/) noexcept override {}
  void set_comparable(int /*number*/) noexcept override {}

  [[nodiscard]] bool is_right() const { return is_right_ && group_ == "data"; }
  [[nodiscard]] bool under_way() const { return under_way_; }
  [[nodiscard]] int begun() const { return begun_; }

 private:
  std::string group_;
  std::atomic<bool> is_right_{true};
  std::atomic<bool> under_way_{false};
  std::atomic<int> begun_{0};
};

TEST_CASE("who waits in a collective over NCCL is seen, and who has not come to it", "[nccl]") {
  std::array<Seen, 2> seen;
  std::array<bool, 2> waits{};
  std::array<int, 2> begun{};
  std::atomic<int> looked{0};
  run_nccl_ranks(
      2,
      [&](int rank) {
        NcclOptions options = patient();
        options.activity = &seen[static_cast<std::size_t>(rank)];
        return options;
      },
      [&](const NcclRank& rank) {
        const OnGpu<float> values(rank.device, {1.0F});
        for (int i = 0; i < 50; ++i) {
          all_reduce(rank, values, rank.stream());
        }
        rank.stream().synchronize();
        if (rank.rank() == 0) {
          all_reduce(rank, values, rank.stream());
        }
        std::this_thread::sleep_for(500ms);  // some looks of the watchdog's
        const auto at = static_cast<std::size_t>(rank.rank());
        waits[at] = seen[at].under_way();
        begun[at] = seen[at].begun();
        ++looked;
        wait_for(looked, 2);
        if (rank.rank() == 1) {
          all_reduce(rank, values, rank.stream());
        }
        rank.stream().synchronize();
      });
  CHECK(waits[0]);
  CHECK(begun[0] == 51);
  CHECK_FALSE(waits[1]);
  CHECK(begun[1] == 50);
  for (const Seen& one : seen) {
    CHECK(one.is_right());
    CHECK_FALSE(one.under_way());
    CHECK(one.begun() == 51);
  }
}

/// A store that is lost when `is_gone` is set.
class LosableStore final : public Store {
 public:
  explicit LosableStore(Store& inner) : inner_(inner) {}
  void set(std::string_view key, std::string_view value) override { usable().set(key, value); }
  [[nodiscard]] std::string get(std::string_view key, std::chrono::milliseconds timeout) override {
    return usable().get(key, timeout);
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    return usable().add(key, amount);
  }
  [[nodiscard]] Column all_to_all(const AllToAll& call,
                                  std::chrono::milliseconds timeout) override {
    return usable().all_to_all(call, timeout);
  }
  void lose() { is_gone_ = true; }

 private:
  Store& usable() {
    if (is_gone_) throw PeerLost("lost the store");
    return inner_;
  }
  Store& inner_;
  std::atomic<bool> is_gone_{false};
};

TEST_CASE("who waits while the store is lost knows that rank 0 is", "[nccl]") {
  REQUIRE(num_gpus() == 4);
  const auto memory = make_memory_store();
  std::string told;
  std::atomic<int> done{0};
  run_threads(2, [&](int rank) {
    LosableStore store(*memory);
    const Backend backend = make_cuda_backend(rank);
    auto& device = dynamic_cast<CudaDevice&>(*backend.device);
    const auto group = make_nccl_communicator({.name = "data", .members = {0, 1}, .rank = rank},
                                              store, device, with_timeout(2s));
    group->barrier();
    if (rank == 1) {
      store.lose();
      told = outcome([&] { group->barrier(); });
      ++done;
    } else {
      wait_for(done, 1);
      group->abort();  // the other one cannot come to take leave
    }
  });
  CHECK_THAT(told, Contains("PeerLost: lost the store"));
  CHECK(emulated::num_live_nccl_comms() == 0);
}

TEST_CASE("the NCCL that would be used says its version", "[nccl]") {
  CHECK(find_nccl().version == "NCCL 2.18.1");
  CHECK(find_nccl().why_none.empty());
}

}  // namespace
}  // namespace dstrain::test
