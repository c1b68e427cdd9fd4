// MemoryEstimate: everything that is known of a run's memory before it starts: what each pipeline
// stage's ranks hold, what libraries take beside it, when in a step how much of it is in use, and
// whether it fits. estimate-memory and the check before a launch both use it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/train/library_overhead.h"
#include "engine/train/memory_fit.h"
#include "engine/train/memory_timeline.h"
#include "engine/train/run_outline.h"

namespace dstrain {

/// The device that the ranks will compute on.
struct EstimatedDevice {
  bool cuda = false;
  int threads = 1;         ///< of a rank
  int ranks_per_host = 1;  ///< of the host that has most
};

struct MemoryEstimate {
  EstimatedDevice device;
  RunOutline outline;
  int rank = 0;  ///< that holds most, libraries included; what follows is its own
  std::int64_t planned_bytes = 0;
  std::vector<Overhead> overhead;  ///< on its device
  /// With an accelerator: the host's memory that the process takes besides. On a CPU the device's
  /// memory is the host's.
  std::vector<Overhead> host;
  std::int64_t disk_bytes = 0;  ///< that the rank keeps on its host's disk
  std::string disk_folder;
  MemoryTimeline timeline;
  std::string peak;  ///< where the timeline stands highest
  std::optional<MemoryLimit> limit;
  std::optional<MemoryFit> fit;  ///< where there is a limit

  [[nodiscard]] std::int64_t bytes() const { return planned_bytes + total_bytes(overhead); }
  /// The host memory of a host whose ranks all take as much as this one.
  [[nodiscard]] std::int64_t host_bytes() const {
    return device.ranks_per_host * (device.cuda ? total_bytes(host) : bytes());
  }
  [[nodiscard]] std::int64_t host_disk_bytes() const { return device.ranks_per_host * disk_bytes; }
};

/// `config_with({})` is the config to estimate, for `world_size` ranks. What fits does so on
/// `hosts` too: FitQuestion::hosts.
MemoryEstimate estimate_memory(const ConfigWith& config_with,
                               int world_size,
                               const EstimatedDevice& device,
                               const std::optional<MemoryLimit>& limit,
                               const std::vector<HostRoom>& hosts = {});

/// What the rank that a plan is for takes of its host's memory beside a GPU: what is planned there,
/// and libraries.
std::vector<Overhead> host_memory_beside_gpu(const RunPlan& plan);

/// All that the rank that a plan is for takes of its host's memory, which on a CPU is its device's.
std::int64_t host_bytes(const RunPlan& plan, const EstimatedDevice& device);

/// The memory that libraries take on the device of the rank that a plan is for.
std::vector<Overhead> library_overhead(const RunPlan& plan, const EstimatedDevice& device);

}  // namespace dstrain
