#include "engine/train/memory_estimate.h"

#include <utility>

#include "engine/train/make_run_plan.h"

namespace dstrain {

std::vector<Overhead> library_overhead(const RunPlan& plan, const EstimatedDevice& device) {
  return device.cuda ? cuda_library_overhead(plan) : cpu_library_overhead(plan, device.threads);
}

std::vector<Overhead> host_memory_beside_gpu(const RunPlan& plan) {
  std::vector<Overhead> parts = cuda_host_overhead(plan);
  for (const Region& region : plan.memory.regions()) {
    if (region.space == Space::kHost && region.bytes > 0) {
      parts.push_back({name_of(region.kind), region.bytes, "planned: " + region.because});
    }
  }
  return parts;
}

std::int64_t host_bytes(const RunPlan& plan, const EstimatedDevice& device) {
  return device.cuda ? total_bytes(host_memory_beside_gpu(plan))
                     : plan.memory.bytes() + total_bytes(library_overhead(plan, device));
}

MemoryEstimate estimate_memory(const ConfigWith& config_with,
                               int world_size,
                               const EstimatedDevice& device,
                               const std::optional<MemoryLimit>& limit,
                               const std::vector<HostRoom>& hosts) {
  const Config config = config_with({}).config;
  MemoryEstimate estimate{
      .device = device, .outline = outline_run(config, world_size), .limit = limit};
  std::optional<RunPlan> fullest;
  const Schedule schedule = schedule_of(config);
  for (const StageOutline& stage : estimate.outline.stages) {
    RunPlan plan = make_run_plan(config, world_size, stage.worst_rank, schedule);
    std::vector<Overhead> overhead = library_overhead(plan, device);
    const std::int64_t planned = plan.memory.bytes();
    if (!fullest || planned + total_bytes(overhead) > estimate.bytes()) {
      estimate.rank = stage.worst_rank;
      estimate.planned_bytes = planned;
      estimate.overhead = std::move(overhead);
      fullest = std::move(plan);
    }
  }
  if (device.cuda) {
    estimate.host = host_memory_beside_gpu(*fullest);
  }
  estimate.disk_bytes = fullest->memory.bytes(Space::kDisk);
  estimate.disk_folder = fullest->disk.folder;
  estimate.timeline = memory_timeline(*fullest);
  estimate.peak = describe(estimate.timeline.highest(), fullest->blueprint);
  if (limit) {
    const Cluster cluster{.accelerator = limit->accelerator.value_or(Accelerator{}),
                          .ranks_per_host = device.ranks_per_host};
    estimate.fit = examine_fit(
        {.config_with = config_with,
         .world_size = world_size,
         .limit = *limit,
         .overhead =
             [&](const RunPlan& plan) { return total_bytes(library_overhead(plan, device)); },
         .cluster = cluster,
         .host_bytes = [&](const RunPlan& plan) { return host_bytes(plan, device); },
         .hosts = hosts});
  }
  return estimate;
}

}  // namespace dstrain
