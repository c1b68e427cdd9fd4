// Finds how much memory this process may still use: what the machine has, or less where a control
// group (container, batch job) allows less.
#pragma once

#include <string>

#include "kernels/core/device.h"

namespace dstrain {

/// `root` is "/" except in tests. Files that are missing or unreadable set no limit.
MemoryInfo read_memory_info(const std::string& root = "/");

}  // namespace dstrain
