// What goes wrong between ranks over emulated NCCL: every wait ends, with a sentence that says
// which group, operation and rank, and nothing of NCCL's is left behind.
#include <array>
#include <atomic>
#include <thread>

#include <catch2/catch.hpp>

#include "kernels/core/check.h"
#include "kernels/cuda/cuda_check.h"
#include "tests/emulated_cuda/emulated_nccl.h"
#include "tests/emulated_cuda/nccl_ranks.h"

namespace dstrain::test {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using Clock = std::chrono::steady_clock;

constexpr auto kTimeout = 800ms;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void all_reduce(const NcclRank& rank, const OnGpu<float>& values, Stream& stream) {
  rank.group.all_reduce(values.tensor(), ReduceOp::kSum, Purpose::kGradient, stream);
}

/// The type and words of what `body` throws.
std::string outcome(const std::function<void()>& body) {
  try {
    body();
  } catch (const Timeout& failure) {
    return std::string("Timeout: ") + failure.what();
  } catch (const PeerLost& failure) {
    return std::string("PeerLost: ") + failure.what();
  } catch (const InternalError& failure) {
    return std::string("InternalError: ") + failure.what();
  } catch (const CudaError& failure) {
    return std::string("CudaError: ") + failure.what();
  }
  return "nothing";
}

/// Until the others have reached `count`.
void wait_for(const std::atomic<int>& done, int count) {
  const auto deadline = Clock::now() + 20s;
  while (done < count && Clock::now() < deadline) {
    std::this_thread::sleep_for(2ms);
  }
}

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

TEST_CASE("members whose calls differ over NCCL are told both at the deadline", "[nccl]") {
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

/// What the launcher would see of a rank.
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
