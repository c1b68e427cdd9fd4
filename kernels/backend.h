// Backend: one device and the operations on it. Which backends exist is decided by the files
// that CMake links, not by macros.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/attention_kernels.h"
#include "kernels/core/device.h"
#include "kernels/graph_replay.h"
#include "kernels/ops.h"

namespace dstrain {

struct Backend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<GraphReplay> graphs{};  ///< nullptr: repeated work is enqueued part by part
};

/// The CPU, computing with `threads` OpenMP threads (0: as many as this process may run on).
Backend make_cpu_backend(int threads);

/// The CUDA devices that this process can compute with.
struct CudaDevices {
  std::string built_with;          ///< "CUDA 13.0"; empty: built without
  std::vector<std::string> names;  ///< in CUDA's order, which CUDA_VISIBLE_DEVICES sets
  std::string why_none;            ///< a sentence, where there is none
};
CudaDevices find_cuda_devices();

struct CudaOptions {
  /// Lets products of f32 matrices round their operands to TF32, whose mantissa has 10 bits of 23,
  /// and are several times as fast.
  bool tf32 = false;
  /// The file for algorithms of matrix products, which are timed when a shape is first met, and
  /// kept for every process that names it. Empty: nothing is timed, and the library's first
  /// proposal is taken.
  std::string matmul_algorithms_file;
  AttentionKernels attention = AttentionKernels::kOwn;
  bool graphs = false;  ///< Backend::graphs
  /// Whether products in 8 bits will be needed: they are refused at once where the GPU has none,
  /// and not when the first is met.
  bool fp8 = false;
  /// The name by which the user counts, "cuda:1", where this process sees only that GPU. Empty: by
  /// its index.
  std::string name;
  /// Called with a sentence for each choice that is made while running. May be empty.
  std::function<void(const std::string&)> tell;
};

/// Throws std::runtime_error, saying why, where there is no such device.
Backend make_cuda_backend(int index, const CudaOptions& options = {});

}  // namespace dstrain
