// MemoryCheck: whether the ranks that will be started on a host fit into its memory together, and
// into that of its GPUs, found out before the first of them starts. The same plan and the same
// remedies as estimate-memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/train/memory_estimate.h"
#include "launcher/agent/host_question.h"

namespace dstrain {

/// The memory that a host reports of itself.
struct HostMemory {
  std::string name;
  int ranks = 0;                     ///< that will run there; they are numbered host by host
  std::int64_t available_bytes = 0;  ///< to new processes, the page cache given up
  /// Empty: nothing is known of them, and each rank asks its own GPU.
  std::vector<launcher::GpuReport> gpus{};
  std::vector<int> gpu_of_rank{};  ///< among them, one a rank
  /// Where the run offloads to, or would as remedies have it; -1: not known.
  std::int64_t free_disk_bytes = -1;
};

/// Throws launcher::PreflightError for the first host whose disk or memory is too small: on CPUs
/// for plan and libraries, on a GPU for the plan alone, as what libraries take there is not
/// measured. Where it is too small for plan and libraries together, what is returned has a sentence
/// about the first such GPU.
std::vector<std::string> check_memory(const ConfigWith& config_with,
                                      std::span<const HostMemory> hosts,
                                      const EstimatedDevice& device);

}  // namespace dstrain
