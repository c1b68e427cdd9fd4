#include "tests/parity/measure.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "engine/comm/store.h"
#include "engine/train/make_run_plan.h"
#include "tests/harness/thread_world.h"
#include "tests/harness/wire_here.h"
#include "tests/parity/whole_state.h"

namespace dstrain::test {
namespace {

/// Facts about one rank, each a fault unless it is so.
class RankFacts {
 public:
  RankFacts(int rank, std::vector<std::string>& faults) : rank_(rank), faults_(faults) {}

  template <typename Value>
  void expect(const std::string& what, const Value& found, const Value& expected) {
    if (found != expected) {
      faults_.push_back(fmt::format("rank {}: {} {}, expected {}", rank_, what, found, expected));
    }
  }

 private:
  int rank_;
  std::vector<std::string>& faults_;
};

/// Micro-batches in flight on pipeline rank r of p, m a step and v chunks a rank: Narayanan et al.
/// 2021, §2.2.
std::int64_t most_in_flight(const PipelineConfig& pipeline, std::int64_t m, std::int64_t r) {
  const std::int64_t p = pipeline.stages;
  const std::int64_t v = pipeline.virtual_stages;
  switch (pipeline.schedule) {
    case ScheduleKind::kGpipe:
      return p == 1 ? 1 : m;
    case ScheduleKind::k1F1B:
      return std::min(m, p - r);
    case ScheduleKind::kInterleaved:
      return std::min(v * m, 2 * (p - r - 1) + (v - 1) * p + 1);
  }
  return 0;
}

/// Over all chunks at once, from the order in which the rank works.
std::int64_t peak_in_flight(const std::vector<Action>& actions) {
  std::int64_t now = 0;
  std::int64_t peak = 0;
  for (const Action& action : actions) {
    now += action.kind == Action::Kind::kForward ? 1 : 0;
    peak = std::max(peak, now);
    now -= action.kind == Action::Kind::kBackward ? 1 : 0;
  }
  return peak;
}

void check_memory(const TinyRun& run, const Config& config, const RunPlan& plan, RankFacts& facts) {
  facts.expect("arena bytes", run.arena_bytes, run.plan_bytes);
  facts.expect("bytes of the engine's plan", run.plan_bytes, plan.memory.bytes());
  const std::int64_t in_flight = most_in_flight(config.pipeline, plan.batch.accumulation,
                                                plan.mesh.index(Axis::kPipeline, plan.rank));
  facts.expect("micro-batches in flight", peak_in_flight(plan.actions), in_flight);
  if (plan.chunks.size() == 1) {
    facts.expect("slots", std::int64_t{plan.slots.num_slots(0)}, in_flight);
  }
  std::int64_t saved = 0;
  for (const BufferDecl& buffer : plan.blueprint.buffers()) {
    const std::int64_t line = MemoryPlan::kAlignmentBytes;
    if (buffer.lifetime == Lifetime::kSaved) {
      saved += (buffer.bytes() + line - 1) / line * line * plan.slots.num_slots(buffer.chunk);
    }
  }
  for (const Region& region : run.regions) {
    if (region.kind == RegionKind::kSaved) {
      facts.expect("bytes saved", region.bytes, saved);
    }
  }
}

}  // namespace

const TinyRun& ReferenceRuns::of(const Combination& combination) {
  const Combination alone = combination.alone();
  const std::string name = alone.name();
  auto found = runs_.find(name);
  if (found == runs_.end()) {
    found = runs_.emplace(name, train_tiny(alone.options)).first;
  }
  return found->second;
}

std::vector<TinyRun> train_ranks(const Combination& combination) {
  const auto train = [&](Rendezvous& rank) { return train_tiny(rank, combination.options); };
  const int ranks = combination.ranks();
  if (combination.carrier == Carrier::kThreads) {
    return thread_world(ranks, train);
  }
  const auto store = make_memory_store();
  std::vector<std::unique_ptr<Rendezvous>> world;
  for (int rank = 0; rank < ranks; ++rank) {
    world.push_back(make_process_rendezvous(rank, ranks, *store, {.wire = wire_here()}));
  }
  return thread_world(std::move(world), train);
}

Measurement measure(const Combination& combination, ReferenceRuns& references) {
  const TinyRun& reference = references.of(combination);
  const Config config = tiny_config(combination.options, combination.ranks());
  const std::vector<TinyRun> runs = train_ranks(combination);
  Measurement result;
  std::vector<std::vector<HeldPiece>> held;
  for (int rank = 0; rank < combination.ranks(); ++rank) {
    const TinyRun& run = runs[static_cast<std::size_t>(rank)];
    const auto worse = [](double& worst, double difference) {
      worst = difference <= worst ? worst : difference;
    };
    worse(result.loss_difference, worst_relative(run.losses, reference.losses));
    worse(result.norm_difference, worst_relative(run.grad_norms, reference.grad_norms));
    const RunPlan plan = make_run_plan(config, combination.ranks(), rank);
    RankFacts facts(rank, result.faults);
    facts.expect("losses are rank 0's:", run.losses == runs[0].losses, true);
    facts.expect("norms are rank 0's:", run.grad_norms == runs[0].grad_norms, true);
    facts.expect("traffic:", run.unplanned_traffic, std::string());
    check_memory(run, config, plan, facts);
    held.push_back(run.held);
  }
  result.learns = runs[0].losses.back() < runs[0].losses.front();
  const WholeState state = whole_state(held, result.faults);
  if (combination.carrier != Carrier::kThreads) {
    Combination on_threads = combination;
    on_threads.carrier = Carrier::kThreads;
    std::vector<std::vector<HeldPiece>> same;
    for (const TinyRun& run : train_ranks(on_threads)) {
      same.push_back(run.held);
    }
    for (const std::string& name : differences(state, whole_state(same, result.faults))) {
      result.faults.push_back(name + ": not the bits that threads give");
    }
  }
  if (state.size() != whole_state({reference.held}, result.faults).size()) {
    result.faults.emplace_back("the tensors are not those of the single-rank run");
  }
  return result;
}

}  // namespace dstrain::test
