#include "engine/train/run_training.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "engine/base/amount_text.h"
#include "engine/base/usable_cores.h"
#include "engine/checkpoint/agreement.h"
#include "engine/config/arch/model_counts.h"
#include "engine/train/engine.h"
#include "engine/train/folder_ownership.h"
#include "engine/train/host_name.h"
#include "engine/train/library_overhead.h"
#include "engine/train/make_run_plan.h"
#include "engine/train/rank_device.h"
#include "engine/train/records/run_history.h"
#include "engine/train/trained_part.h"
#include "engine/train/trainer.h"
#include "kernels/core/trace_log.h"

namespace dstrain {

TrainResult run_training(const LoadedConfig& config,
                         Rendezvous& rendezvous,
                         const TrainOptions& options) {
  TraceLog log;  // before all that is traced
  const TraceLog::Thread bound(&log, "compute");
  const int threads = options.threads > 0 ? options.threads : num_usable_cores();
  RunPlan planned = make_run_plan(config.config, rendezvous.world_size(), rendezvous.world_rank());
  RankDevice device = make_rank_device(config.config, planned, threads, rendezvous, options);
  const bool on_cpu = device.backend.device->kind() == DeviceKind::kCpu;
  Engine engine(std::move(planned), rendezvous, std::move(device.backend), threads,
                options.activity, std::move(device.rendezvous), FirstValues::kNone);
  const RunPlan& plan = engine.plan();
  if (options.activity != nullptr) {
    options.activity->set_comparable(plan.mesh.index(Axis::kPipeline, plan.rank));
  }
  if (engine.world().rank() == 0) {
    std::string planned_bytes = size_text(plan.memory.bytes()) + " a rank planned";
    for (const auto& [space, where] :
         {std::pair{Space::kHost, "beside it in the host's memory"}, {Space::kDisk, "on disk"}}) {
      if (const std::int64_t bytes = plan.memory.bytes(space); bytes > 0) {
        planned_bytes += fmt::format(", {} {}", size_text(bytes), where);
      }
    }
    const std::int64_t parameters = num_parameters(config.config.model);
    const std::int64_t trained = trained_parameters(plan.shape);
    spdlog::info("{} parameters{}, {}, {} on each; {} tokens a step; {}", grouped(parameters),
                 trained == parameters ? "" : fmt::format(", {} trained", grouped(trained)),
                 counted(rendezvous.world_size(), "rank"),
                 on_cpu ? engine.device().description() : engine.device().model(),
                 grouped(plan.batch.global_tokens()), planned_bytes);
    for (const std::string& notice : config.notices) {
      spdlog::info("{}", notice);
    }
    for (const std::string& warning : config.warnings) {
      spdlog::warn("{}", warning);
    }
  }
  const std::unique_ptr<RunOwner> owner = own_folder(config.config, options, engine.world());
  RunHistory history(config.config.training.output_dir);
  const auto note_end = [&](const std::string& how) {
    if (!owner) return;
    owner->note_end(how);
    if (owner->is_mine())
      history.end(how);  // a run that took the folder over has a line of its own
  };
  try {
    Trainer trainer(
        config, engine, options, owner.get(),
        total_bytes(on_cpu ? cpu_library_overhead(plan, threads) : cuda_library_overhead(plan)));
    const std::vector<std::string> hosts = gather_texts(host_name(), engine.world());
    if (owner) {
      history.start(trainer.step(), config, plan.mesh,
                    on_cpu ? engine.device().description() : engine.device().model(), hosts,
                    owner->record());
    }
    const TrainResult result = trainer.run();
    const bool has_begun = result.step > 0;
    note_end(result.stopped_by == 0 ? fmt::format("finished at step {}", result.step)
             : has_begun
                 ? fmt::format("stopped by signal {} at step {}, which was saved",
                               result.stopped_by, result.step)
                 : fmt::format("stopped by signal {} before its first step", result.stopped_by));
    return result;
  } catch (const std::exception& error) {
    note_end(fmt::format("failed: {}", error.what()));
    throw;
  }
}

}  // namespace dstrain
