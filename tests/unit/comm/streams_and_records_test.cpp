// Collectives wait for their turn on a stream, and the recording decorator lists them.
#include <array>
#include <deque>

#include <catch2/catch.hpp>

#include "tests/harness/local_rendezvous.h"
#include "tests/harness/recording_communicator.h"
#include "tests/unit/comm/ranks.h"

namespace dstrain {
namespace {

/// Runs nothing until it is synchronized: a side stream that is as late as it can be.
class LateStream final : public Stream {
 public:
  [[nodiscard]] bool is_inline() const override { return false; }
  void enqueue(std::function<void()> task) override { tasks_.push_back(std::move(task)); }
  [[nodiscard]] Event record() override { return {}; }
  void wait(const Event& /*event*/) override {}
  void wait_until(std::uint64_t /*ticket*/) override { synchronize(); }
  void synchronize() override {
    while (!tasks_.empty()) {
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      task();
    }
  }

 private:
  std::deque<std::function<void()>> tasks_;
};

Tensor tensor(std::vector<float>& values) {
  return {values.data(), DType::kF32, Shape{static_cast<std::int64_t>(values.size())}};
}

TEST_CASE("collectives on a side stream happen there, in order", "[comm]") {
  for (const Carrier carrier : {Carrier::kLocal, Carrier::kUnix}) {
    std::array<bool, 2> in_order{};
    run_ranks(carrier, 2, [&](Communicator& group) {
      LateStream stream;
      const auto rank = static_cast<std::size_t>(group.rank());
      std::vector<float> values{static_cast<float>(group.rank() + 1)};
      std::vector<float> gathered(2);
      std::vector<float> received(1);
      group.all_reduce(tensor(values), ReduceOp::kSum, Purpose::kGradient, stream);
      stream.enqueue([&] { values[0] *= 10.0f * static_cast<float>(group.rank() + 1); });
      group.all_gather(tensor(values), tensor(gathered), Purpose::kParameter, stream);
      {
        const std::array<P2p, 2> messages{
            P2p{P2p::Kind::kSend, 1 - group.rank(), tensor(values)},
            P2p{P2p::Kind::kReceive, 1 - group.rank(), tensor(received)}};
        group.exchange(messages, Purpose::kActivation, stream);
      }  // the list of messages may go before they do
      std::vector<float> parts{values[0], 0.5F, 0.25F};
      std::vector<float> taken(3);
      {
        const std::array<std::int64_t, 2> counts =
            rank == 0 ? std::array<std::int64_t, 2>{1, 2} : std::array<std::int64_t, 2>{2, 1};
        stream.enqueue([&] { parts[0] = values[0]; });
        group.all_to_all(tensor(parts), counts, tensor(taken), counts, Purpose::kActivation,
                         stream);
      }  // and so may the counts
      const bool untouched = values[0] == static_cast<float>(group.rank() + 1);
      stream.synchronize();
      in_order[rank] = untouched && gathered == std::vector<float>{30.0f, 60.0f} &&
                       received[0] == (group.rank() == 0 ? 60.0f : 30.0f) &&
                       taken == (rank == 0 ? std::vector<float>{30.0f, 60.0f, 0.5f}
                                           : std::vector<float>{0.5f, 0.25f, 0.25f});
    });
    CHECK(in_order[0]);
    CHECK(in_order[1]);
  }
}

TEST_CASE("the record lists operation, group, purpose and bytes of what goes out", "[comm]") {
  const auto ranks = make_local_rendezvous(2);
  std::array<CollectiveLog, 2> logs;
  run_threads(2, [&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    RecordingRendezvous rendezvous(*ranks[index], logs[index]);
    const auto group = rendezvous.make_group("data-parallel", everyone(2));
    const std::array<int, 1> me{rank};
    const auto solo = rendezvous.make_group("solo", me);
    InlineStream stream;
    std::vector<float> whole(8);
    std::vector<float> half(4);
    group->all_reduce(tensor(whole), ReduceOp::kSum, Purpose::kGradient, stream);
    group->reduce_scatter(tensor(whole), tensor(half), ReduceOp::kSum, Purpose::kGradient, stream);
    group->all_gather(tensor(half), tensor(whole), Purpose::kParameter, stream);
    group->all_gather(tensor(half), tensor(whole), Purpose::kParameter, stream);
    group->broadcast(tensor(half), 0, Purpose::kParameter, stream);
    const std::array<P2p, 2> messages{P2p{P2p::Kind::kSend, 1 - rank, tensor(half)},
                                      P2p{P2p::Kind::kReceive, 1 - rank, tensor(whole).flat(0, 4)}};
    group->exchange(messages, Purpose::kActivation, stream);
    const std::array<std::int64_t, 2> counts{1, 3};
    const std::array<std::int64_t, 2> to_me{rank == 0 ? 1 : 3, rank == 0 ? 1 : 3};
    group->all_to_all(tensor(half), counts, tensor(whole).flat(0, rank == 0 ? 2 : 6), to_me,
                      Purpose::kActivation, stream);
    group->barrier();
    solo->all_reduce(tensor(whole), ReduceOp::kSum, Purpose::kGradient, stream);
  });
  const CollectiveLog& log = logs[0];
  CHECK(log.entries().size() == 8);
  CHECK(log.entries()[0].group == "data-parallel");
  CHECK(log.count(Op::kAllReduce, Purpose::kGradient) == 1);
  CHECK(log.bytes(Op::kAllReduce, Purpose::kGradient) == 32);
  CHECK(log.count(Op::kAllReduce, Purpose::kParameter) == 0);
  CHECK(log.bytes(Op::kReduceScatter, Purpose::kGradient) == 32);
  CHECK(log.count(Op::kAllGather, Purpose::kParameter) == 2);
  CHECK(log.bytes(Op::kAllGather, Purpose::kParameter) == 64);
  CHECK(log.bytes(Op::kBroadcast, Purpose::kParameter) == 16);
  CHECK(log.bytes(Op::kExchange, Purpose::kActivation) == 16);
  CHECK(log.bytes(Op::kAllToAll, Purpose::kActivation) == 16);
  CHECK(log.entries()[6].dtype == DType::kF32);
  CHECK(log.entries()[6].elements == 4);
  CHECK(log.count(Op::kBarrier, Purpose::kControl) == 1);
  logs[1].clear();
  CHECK(logs[1].entries().empty());
}

}  // namespace
}  // namespace dstrain
