// Finds the limit that keeps this process from making one more process or thread: the user's, a
// cgroup's or the kernel's. EAGAIN, whose message this completes, names none of them.
#pragma once

#include <filesystem>
#include <string>

namespace dstrain::launcher {

/// Returns a clause to append, ": RLIMIT_NPROC (ulimit -u) allows this user 4096 processes and
/// threads, and 4096 are there", with every limit that is reached, or nearly; else with all that
/// there are. Empty where nothing is limited. `root` is "/" except in tests.
std::string describe_task_limits(const std::filesystem::path& root = "/");

}  // namespace dstrain::launcher
