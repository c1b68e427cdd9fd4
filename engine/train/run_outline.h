// RunOutline: what a run would be on all its ranks, without any of them: the layout, the step, the
// schedule's idle share, and for every pipeline stage the bytes of the rank that holds most. It
// comes from the plans that the ranks themselves would make, so the numbers are those that a run
// allocates.
#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/config/config.h"
#include "engine/plan/memory_components.h"
#include "engine/plan/mesh.h"
#include "engine/plan/shard_map.h"
#include "engine/train/run_plan.h"

namespace dstrain {

struct StageOutline {
  std::vector<Range> blocks;        ///< of the model, one range a chunk
  int worst_rank = 0;               ///< in the world; the first of equals
  int micro_batches_in_flight = 1;  ///< of the chunk that has most
  ComponentBytes bytes;             ///< of the worst rank
  [[nodiscard]] std::int64_t total_bytes() const { return bytes.total(); }
};

struct RunOutline {
  Mesh mesh;
  std::int64_t parameters = 0;       ///< of the whole model, without adapters
  std::int64_t trained = 0;          ///< of these, or of adapters
  double idle_share = 0.0;           ///< of a step, backward taken as two forwards
  std::vector<StageOutline> stages;  ///< one a pipeline rank
};

/// The stage whose worst rank holds most; the first of equals.
const StageOutline& fullest(const std::vector<StageOutline>& stages);

/// The ranks that suffice to plan: every other rank holds no more than one of them. `config` must
/// be resolved for this world size.
std::vector<int> ranks_that_stand_for_all(const Config& config, int world_size);

/// `config` must be resolved for this world size. Thousands of ranks take a fraction of a second:
/// ranks that differ in nothing but their number are planned once.
RunOutline outline_run(const Config& config, int world_size);

/// The degrees of the layout, for scripts: {"pipeline": 2, "data": 4, …, "zero_stage": 1}.
nlohmann::ordered_json layout_json(const Mesh& mesh, const Config& config);

/// Where a rank stands along the axes that divide the run: "data 1, tensor 0". Empty: none does.
std::string place_of_rank(const Mesh& mesh, int rank);

}  // namespace dstrain
