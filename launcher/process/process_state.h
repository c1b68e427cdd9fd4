// The state of a process of this machine according to /proc: whether it runs, sleeps or is stopped.
#pragma once

#include <sys/types.h>

#include "launcher/supervision/rank_status.h"

namespace dstrain::launcher {

/// The state of the process's first thread, and the time of all of them. Empty if there is no such
/// process.
ProcessState process_state(pid_t pid);

}  // namespace dstrain::launcher
