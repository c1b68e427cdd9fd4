// Linked instead of the CUDA backend where the toolkit was not there to build it.
#include <stdexcept>

#include "kernels/backend.h"

namespace dstrain {

CudaDevices find_cuda_devices() {
  return {.built_with = {}, .names = {}, .why_none = "this dstrain is built without CUDA"};
}

Backend make_cuda_backend(int /*index*/, const CudaOptions& /*options*/) {
  throw std::runtime_error("no GPU to compute with: this dstrain is built without CUDA");
}

}  // namespace dstrain
