#include "cmd/memory_check.h"

#include <vector>

#include <fmt/format.h>

#include "cmd/memory_report.h"
#include "cmd/memory_table.h"
#include "launcher/errors.h"

namespace dstrain {
namespace {

/// What a rank of each pipeline stage takes, libraries included.
std::vector<std::int64_t> bytes_by_stage(const Config& config,
                                         const RunOutline& outline,
                                         const EstimatedDevice& device) {
  const Schedule schedule = schedule_of(config);
  const int world_size = outline.topology.world_size();
  std::vector<std::int64_t> bytes;
  for (const StageOutline& stage : outline.stages) {
    const RunPlan plan = make_run_plan(config, world_size, stage.worst_rank, schedule);
    bytes.push_back(stage.total_bytes() + total_bytes(library_overhead(config, plan, device)));
  }
  return bytes;
}

}  // namespace

void check_memory(const ConfigWith& config_with,
                  std::span<const HostMemory> hosts,
                  const EstimatedDevice& device) {
  if (device.cuda) {
    return;  // the hosts' answers know no GPUs: each rank asks its own before it takes any memory
  }
  int world_size = 0;
  for (const HostMemory& host : hosts) {
    world_size += host.ranks;
  }
  const Config config = config_with({}).config;
  const RunOutline outline = outline_run(config, world_size);
  const std::vector<std::int64_t> by_stage = bytes_by_stage(config, outline, device);
  int rank = 0;
  for (const HostMemory& host : hosts) {
    std::int64_t needed = 0;
    for (const int end = rank + host.ranks; rank < end; ++rank) {
      needed += by_stage[static_cast<std::size_t>(outline.topology.coordinates(rank).pipeline)];
    }
    if (needed <= host.available_bytes) continue;
    // Each of its ranks may have an equal share.
    const std::int64_t share = host.available_bytes / host.ranks;
    const MemoryEstimate estimate =
        estimate_memory(config_with, world_size, device,
                        MemoryLimit{.bytes = share,
                                    .name = fmt::format("a rank's share of host {}", host.name),
                                    .accelerator = std::nullopt});
    throw launcher::PreflightError(fmt::format(
        "host {} has {} of memory free, and its {} will take {}; --no-memory-check starts them "
        "nevertheless\n{}",
        host.name, size_text(host.available_bytes),
        host.ranks == 1 ? "rank" : fmt::format("{} ranks", host.ranks), size_text(needed),
        estimate.fit->fits ? "" : fit_text(estimate)));
  }
}

}  // namespace dstrain
