// RunPlan: everything about a run that can be known before touching a device, for one rank. A pure
// function of (config, world size, rank): printed by estimates, executed by the engine, compared
// by tests.
#pragma once

#include <cstdint>

#include "engine/model/transformer_stage.h"
#include "engine/optim/optimizer.h"
#include "engine/plan/memory_plan.h"
#include "engine/plan/shard_map.h"
#include "engine/plan/topology.h"
#include "engine/spec/config.h"

namespace dstrain {

/// The batch of one optimizer step, as this rank sees it.
struct BatchPlan {
  std::int64_t micro_batch = 1;   ///< sequences of a forward
  std::int64_t accumulation = 1;  ///< forwards of a step
  std::int64_t data_parallel = 1;
  std::int64_t sequence = 1;  ///< tokens of a sequence
  int data_rank = 0;

  [[nodiscard]] std::int64_t global_samples() const {
    return micro_batch * accumulation * data_parallel;
  }
  [[nodiscard]] std::int64_t global_tokens() const { return global_samples() * sequence; }
  /// First sample of this rank's micro-batch `index` in a step that starts at sample `start`.
  /// Samples are dealt in the order (data rank, micro-batch, row), so the set of a step does not
  /// depend on how many ranks share it.
  [[nodiscard]] std::int64_t first_sample(std::int64_t start, std::int64_t index) const {
    return start + (data_rank * accumulation + index) * micro_batch;
  }
};

struct RunPlan {
  Topology topology;
  Coordinates here;
  BatchPlan batch;
  Blueprint blueprint;
  TransformerStage stage;
  BufferRef norm_total;  ///< f64 scratch of the gradient norm
  ShardMap shards;
  GatherPlans gathers;  ///< ZeRO stage 3
  OptimizerScratch optimizer_scratch;
  Moments moments;
  MemoryPlan memory;
};

/// `config` must be resolved for this world size.
RunPlan make_run_plan(const Config& config, int world_size, int rank);

}  // namespace dstrain
