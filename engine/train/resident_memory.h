// What memory this process holds, as the kernel counts it.
#pragma once

#include <cstdint>

namespace dstrain {

/// From /proc/self/status. The kernel keeps a high-water mark only
/// of everything together, so that of the process's own memory has to be found by sampling often.
struct ResidentMemory {
  std::int64_t own_bytes = 0;   ///< now: RssAnon + RssShmem
  std::int64_t peak_bytes = 0;  ///< VmHWM: the most ever, mapped files included
};
ResidentMemory resident_memory();

}  // namespace dstrain
