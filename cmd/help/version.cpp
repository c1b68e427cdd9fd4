#include "cmd/help/version.h"

#include <fmt/format.h>

#include "engine/comm/nccl_communicator.h"
#include "kernels/backend.h"

namespace dstrain {

std::string version_text() {
  const CudaDevices cuda = find_cuda_devices();
#ifdef __clang__
  constexpr const char* kCompiler = __VERSION__;  // begins with its name
#else
  constexpr const char* kCompiler = "GCC " __VERSION__;
#endif
  std::string text = fmt::format("dstrain {}\nbuilt with {}, {}", DSTRAIN_VERSION, kCompiler,
                                 cuda.built_with.empty() ? "without CUDA" : cuda.built_with);
  text += fmt::format("\ncpu: {}", make_cpu_backend(0).device->description());
  for (std::size_t index = 0; index < cuda.names.size(); ++index) {
    text += fmt::format("\ncuda:{}: {}", index, cuda.names[index]);
  }
  if (cuda.names.empty()) {
    text += fmt::format("\nno GPU: {}", cuda.why_none);
  }
  const NcclLibrary nccl = find_nccl();
  text += nccl.version.empty() ? fmt::format("\nno NCCL: {}", nccl.why_none)
                               : fmt::format("\nbetween GPUs: {}", nccl.version);
  return text;
}

}  // namespace dstrain
