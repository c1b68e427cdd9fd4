// Backend: one device and the operations on it. Which backends exist is decided by the files
// that CMake links, not by macros.
#pragma once

#include <memory>

#include "kernels/core/device.h"
#include "kernels/ops.h"

namespace dstrain {

struct Backend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
};

/// The CPU, computing with `threads` OpenMP threads (0: as many as this process may run on).
Backend make_cpu_backend(int threads);

}  // namespace dstrain
