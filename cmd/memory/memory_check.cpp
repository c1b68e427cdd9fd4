#include "cmd/memory/memory_check.h"

#include <set>

#include <fmt/format.h>

#include "cmd/memory/memory_report.h"
#include "engine/base/amount_text.h"
#include "engine/train/make_run_plan.h"
#include "kernels/core/check.h"
#include "launcher/process/errors.h"

namespace dstrain {
namespace {

struct RankBytes {
  std::int64_t planned = 0;    ///< on the device
  std::int64_t libraries = 0;  ///< beside it
  std::int64_t host = 0;       ///< of a host's memory
  std::int64_t offloaded = 0;  ///< of `host`, what is planned there beside a GPU
  std::int64_t inputs = 0;     ///< of `offloaded`, blocks' inputs
  std::int64_t disk = 0;       ///< of a host's disk
};

/// The bytes that a rank of each pipeline stage takes.
std::vector<RankBytes> bytes_by_stage(const Config& config,
                                      const RunOutline& outline,
                                      const EstimatedDevice& device) {
  const Schedule schedule = schedule_of(config);
  const int world_size = outline.mesh.world_size();
  std::vector<RankBytes> bytes;
  for (const StageOutline& stage : outline.stages) {
    const RunPlan plan = make_run_plan(config, world_size, stage.worst_rank, schedule);
    RankBytes rank{.planned = stage.total_bytes(),
                   .libraries = total_bytes(library_overhead(plan, device))};
    rank.host = host_bytes(plan, device);
    rank.offloaded = plan.memory.bytes(Space::kHost);
    for (const Region& region : plan.memory.regions()) {
      const bool is_input = region.kind == RegionKind::kSaved && region.space == Space::kHost;
      rank.inputs += is_input ? region.bytes : 0;
    }
    rank.disk = plan.memory.bytes(Space::kDisk);
    bytes.push_back(rank);
  }
  return bytes;
}

class MemoryCheck {
 public:
  MemoryCheck(const ConfigWith& config_with,
              int world_size,
              std::span<const HostMemory> hosts,
              const EstimatedDevice& device)
      : config_with_(config_with),
        hosts_(hosts),
        device_(device),
        config_(config_with({}).config),
        outline_(outline_run(config_, world_size)),
        by_stage_(bytes_by_stage(config_, outline_, device)) {}

  void check_host(const HostMemory& host, int first_rank) const {
    std::int64_t needed = 0;
    for (int local = 0; local < host.ranks; ++local) {
      needed += of(first_rank + local).host;
    }
    if (needed <= host.available_bytes) return;
    const std::string remedies =
        device_.cuda ? offloaded_text(host, first_rank)
                     : remedies_for(host.available_bytes, host.ranks, "host " + host.name);
    throw launcher::PreflightError(fmt::format(
        "host {} has {} of memory free, and its {} will take {}; --no-memory-check starts them "
        "nevertheless\n{}",
        host.name, size_text(host.available_bytes), ranks_text(host.ranks), size_text(needed),
        remedies));
  }

  void check_disk(const HostMemory& host, int first_rank) const {
    if (host.free_disk_bytes < 0) return;
    std::int64_t needed = 0;
    for (int local = 0; local < host.ranks; ++local) {
      needed += of(first_rank + local).disk;
    }
    if (needed <= host.free_disk_bytes) return;
    throw launcher::PreflightError(fmt::format(
        "host {} has {} ({} bytes) free in {}, and its {} will keep {} ({} bytes) of what is "
        "offloaded there: free space, or name another folder with "
        "zero_optimization.offload_optimizer.nvme_path",
        host.name, size_text(host.free_disk_bytes), host.free_disk_bytes,
        config_.offload.states_path, ranks_text(host.ranks), size_text(needed), needed));
  }

  void check_gpu(const HostMemory& host,
                 int first_rank,
                 int gpu,
                 std::vector<std::string>& notices) const {
    int ranks = 0;
    RankBytes needed;
    for (int local = 0; local < host.ranks; ++local) {
      if (host.gpu_of_rank[static_cast<std::size_t>(local)] != gpu) continue;
      const RankBytes& rank = of(first_rank + local);
      needed.planned += rank.planned;
      needed.libraries += rank.libraries;
      ++ranks;
    }
    const launcher::GpuReport& report = host.gpus[static_cast<std::size_t>(gpu)];
    const std::int64_t available = report.free_bytes >= 0 ? report.free_bytes : report.total_bytes;
    const std::string where = fmt::format("cuda:{} of host {}", gpu, host.name);
    const std::string has =
        fmt::format("{}, {}, has {} of memory{}", where, report.model, size_text(available),
                    report.free_bytes >= 0 ? " free" : "");
    if (needed.planned > available) {
      throw launcher::PreflightError(fmt::format(
          "{}, and its {} will take {}; --no-memory-check starts them nevertheless\n{}", has,
          ranks_text(ranks), size_text(needed.planned), remedies_for(available, ranks, where)));
    }
    if (needed.planned + needed.libraries > available) {
      notices.push_back(fmt::format(
          "memory is tight: {}, and its {} will take {}, and CUDA's libraries up to {}", has,
          ranks_text(ranks), size_text(needed.planned), size_text(needed.libraries)));
    }
  }

 private:
  [[nodiscard]] const RankBytes& of(int rank) const {
    return by_stage_[static_cast<std::size_t>(outline_.mesh.index(Axis::kPipeline, rank))];
  }

  /// For ranks on GPUs, no settings but those of offloading change the host's part.
  [[nodiscard]] std::string offloaded_text(const HostMemory& host, int first_rank) const {
    std::int64_t states = 0;
    std::int64_t inputs = 0;
    for (int local = 0; local < host.ranks; ++local) {
      const RankBytes& rank = of(first_rank + local);
      states += rank.offloaded - rank.inputs;
      inputs += rank.inputs;
    }
    std::string text;
    if (states > 0) {
      text += fmt::format(
          "{} of that are offloaded to it: a disk that has as much free can take them in its "
          "place (zero_optimization.offload_optimizer.device \"nvme\")\n",
          size_text(states));
    }
    if (inputs > 0) {
      text += fmt::format(
          "{} of that are blocks' inputs: the GPUs keep them with "
          "activation_checkpointing.cpu_checkpointing false\n",
          size_text(inputs));
    }
    return text;
  }

  static std::string ranks_text(int ranks) {
    return ranks == 1 ? "rank" : fmt::format("{} ranks", ranks);
  }

  /// Settings that would make a rank fit into its share, all ranks having an equal one. Empty where
  /// the estimate says that it fits.
  [[nodiscard]] std::string remedies_for(std::int64_t available,
                                         int ranks,
                                         const std::string& where) const {
    const MemoryEstimate estimate = estimate_memory(
        config_with_, outline_.mesh.world_size(), device_,
        MemoryLimit{.bytes = available / ranks,
                    .name = ranks == 1 && device_.cuda ? where : "a rank's share of " + where,
                    .accelerator = std::nullopt},
        rooms());
    return estimate.fit->fits ? "" : fit_text(estimate);
  }

  [[nodiscard]] std::vector<HostRoom> rooms() const {
    std::vector<HostRoom> rooms;
    for (const HostMemory& host : hosts_) {
      rooms.push_back({.ranks = host.ranks,
                       .memory_bytes = host.available_bytes,
                       .disk_bytes = host.free_disk_bytes < 0
                                         ? std::nullopt
                                         : std::optional(host.free_disk_bytes)});
    }
    return rooms;
  }

  const ConfigWith& config_with_;
  const std::span<const HostMemory> hosts_;
  const EstimatedDevice& device_;
  const Config config_;
  const RunOutline outline_;
  const std::vector<RankBytes> by_stage_;
};

}  // namespace

std::vector<std::string> check_memory(const ConfigWith& config_with,
                                      std::span<const HostMemory> hosts,
                                      const EstimatedDevice& device) {
  int world_size = 0;
  for (const HostMemory& host : hosts) {
    world_size += host.ranks;
  }
  const MemoryCheck memory(config_with, world_size, hosts, device);
  std::vector<std::string> notices;
  int first_rank = 0;
  for (const HostMemory& host : hosts) {
    memory.check_disk(host, first_rank);
    memory.check_host(host, first_rank);
    if (device.cuda && !host.gpus.empty()) {
      check(host.gpu_of_rank.size() == static_cast<std::size_t>(host.ranks),
            "{} of {}'s {} ranks have a GPU", host.gpu_of_rank.size(), host.name, host.ranks);
      const std::set<int> taken(host.gpu_of_rank.begin(), host.gpu_of_rank.end());
      for (const int gpu : taken)
        memory.check_gpu(host, first_rank, gpu, notices);
    }
    first_rank += host.ranks;
  }
  if (notices.size() > 1) {  // mostly they are alike, and there may be thousands
    return {fmt::format("{}; so it is on {} GPUs", notices.front(), notices.size())};
  }
  return notices;
}

}  // namespace dstrain
