// MemoryCheck: whether the ranks that will be started on a host fit into its memory together, found
// out before the first of them starts. The same plan and the same remedies as estimate-memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/train/memory_estimate.h"

namespace dstrain {

/// What a host says of itself.
struct HostMemory {
  std::string name;
  int ranks = 0;                     ///< that will run there; they are numbered host by host
  std::int64_t available_bytes = 0;  ///< to new processes, the page cache given up
};

/// For ranks on CPUs. Throws launcher::PreflightError for the first host whose memory is too small.
void check_memory(const ConfigWith& config_with,
                  std::span<const HostMemory> hosts,
                  const EstimatedDevice& device);

}  // namespace dstrain
