// How many cores this process may run on: what taskset, a container or the launcher left it.
#pragma once

#include <sched.h>

namespace dstrain {

inline int num_usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return ::sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) > 0
             ? CPU_COUNT(&cores)
             : 1;
}

}  // namespace dstrain
