// How idle a pipeline is: by the law, by the schedule on paper, and traced: ranks that run the
// schedule over TCP with a sleep in place of each chunk's computation, so that the machine's cores
// do not matter.
//
//   bench_pipeline [milliseconds of a forward through all of a rank's layers, default 40]
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "engine/comm/rendezvous.h"
#include "engine/comm/store.h"
#include "engine/parallel/pipeline.h"
#include "tests/harness/inline_stream.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/wire_here.h"

namespace dstrain {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr std::int64_t kEdgeElements = 1 << 16;  // 256 KiB a message

class SleepingChunks final : public PipelineChunks {
 public:
  SleepingChunks(Milliseconds forward, Milliseconds backward)
      : forward_(forward), backward_(backward) {}

  void forward(int /*chunk*/, int /*micro_batch*/, int /*together*/) override {
    std::this_thread::sleep_for(forward_);
  }
  void backward(int /*chunk*/, int /*micro_batch*/, int /*together*/) override {
    std::this_thread::sleep_for(backward_);
  }
  Tensor edge(Message::What what, Message::Direction direction) override {
    const auto index = static_cast<std::size_t>(what == Message::What::kGradient) * 2 +
                       static_cast<std::size_t>(direction == Message::Direction::kSend);
    return {edges_[index].data(), DType::kF32, Shape{kEdgeElements}};
  }

 private:
  Milliseconds forward_;
  Milliseconds backward_;
  std::vector<std::vector<float>> edges_ = std::vector<std::vector<float>>(
      4, std::vector<float>(static_cast<std::size_t>(kEdgeElements)));
};

/// Seconds of the slowest rank, the best of three steps.
double traced_step(const Schedule& schedule, Milliseconds forward, Milliseconds backward) {
  const auto store = make_memory_store();
  std::vector<std::unique_ptr<Rendezvous>> world;
  for (int rank = 0; rank < schedule.pipeline_ranks; ++rank) {
    world.push_back(
        make_process_rendezvous(rank, schedule.pipeline_ranks, *store, {.wire = wire_here()}));
  }
  std::vector<int> members(static_cast<std::size_t>(schedule.pipeline_ranks));
  for (int rank = 0; rank < schedule.pipeline_ranks; ++rank) {
    members[static_cast<std::size_t>(rank)] = rank;
  }
  const auto seconds = test::thread_world(std::move(world), [&](Rendezvous& rank) {
    const auto group = rank.make_group("pipeline", members);
    SleepingChunks chunks(forward, backward);
    InlineStream stream;
    double best = 1e9;
    for (int step = 0; step < 3; ++step) {
      group->barrier();
      const auto start = Clock::now();
      run_schedule(schedule.ranks[static_cast<std::size_t>(rank.world_rank())], chunks, *group,
                   stream);
      group->barrier();
      best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
    }
    return best;
  });
  return *std::max_element(seconds.begin(), seconds.end());
}

void compare(
    PipelineOrder order, int ranks, int chunks, int micro_batches, Milliseconds rank_forward) {
  const Schedule schedule = make_schedule(order, ranks, chunks, micro_batches);
  const Milliseconds forward = rank_forward / chunks;
  const Milliseconds backward = 2.0 * forward;
  const double law = (ranks - 1.0) / (static_cast<double>(chunks) * micro_batches + ranks - 1.0);
  const double work =
      std::chrono::duration<double>(forward + backward).count() * chunks * micro_batches;
  const double traced = 1.0 - work / traced_step(schedule, forward, backward);
  fmt::print("{:<12} {:>2} {:>2} {:>3}   {:>6.3f} {:>9.3f} {:>7.3f} {:>+8.1f} %\n", name_of(order),
             ranks, chunks, micro_batches, law, idle_share(schedule, 1.0, 2.0), traced,
             100.0 * (traced / law - 1.0));
}

}  // namespace
}  // namespace dstrain

int main(int argc, char** argv) {
  using namespace dstrain;
  const Milliseconds forward(argc > 1 ? std::atof(argv[1]) : 40.0);
  fmt::print("idle share    p  v   m      law  schedule  traced  traced to law\n");
  for (const int ranks : {2, 4}) {
    for (const int micro_batches : {4, 8}) {
      compare(PipelineOrder::kGpipe, ranks, 1, micro_batches, forward);
      compare(PipelineOrder::kOneForwardOneBackward, ranks, 1, micro_batches, forward);
      compare(PipelineOrder::kInterleaved, ranks, 2, micro_batches, forward);
    }
  }
  return 0;
}
