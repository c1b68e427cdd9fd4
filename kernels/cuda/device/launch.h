// The argument that every launcher of this folder takes beside its operands.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/device/fault.h"

namespace dstrain {

struct Launch {
  cudaStream_t stream;
  int multiprocessors;
  FaultPointers faults;
};

}  // namespace dstrain
