// Makes the RunPlan of each rank from a config. The config ends here: what computes, allocates or
// prices a step reads the plan.
#pragma once

#include "engine/config/config.h"
#include "engine/train/run_plan.h"

namespace dstrain {

Mesh mesh_of(const Config& config, int world_size);
/// True if checkpoints are written beside training, from a snapshot (state_snapshot.h). False where
/// only the end is saved, as no training follows it.
bool saves_in_background(const Config& config);
PipelineOrder order_of(const Config& config);
/// The order of the micro-batches on all pipeline ranks, proved to come to its end; the batch sizes
/// must be resolved.
Schedule schedule_of(const Config& config);
/// `config` must be resolved for this world size.
RunPlan make_run_plan(const Config& config, int world_size, int rank);
/// The same for planning many ranks of one run: `schedule` is schedule_of(config).
RunPlan make_run_plan(const Config& config, int world_size, int rank, const Schedule& schedule);
/// The same with a placement other than that of the config's ZeRO stage.
RunPlan make_run_plan(const Config& config,
                      int world_size,
                      int rank,
                      const Schedule& schedule,
                      const Placement& placement);

}  // namespace dstrain
