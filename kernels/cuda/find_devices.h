// Finds the GPUs of this machine without taking memory on any of them.
#pragma once

#include <string>

namespace dstrain {

/// "NVIDIA H100 80GB HBM3, sm_90, 132 multiprocessors, CUDA 13.0, driver 13.0".
std::string describe_cuda_device(int index);

/// The reason why this program has no code for GPUs of that compute capability (75 for 7.5), as the
/// end of a sentence; empty: it has.
std::string why_unusable(int capability);

/// The GPU's UUID: "GPU-8d5a…".
std::string unique_cuda_name(int index);

}  // namespace dstrain
