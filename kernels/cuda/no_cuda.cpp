// Linked instead of the CUDA backend where the toolkit was not there to build it.
#include <stdexcept>

#include "kernels/backend.h"
#include "kernels/gpu_facts.h"

namespace dstrain {

CudaDevices find_cuda_devices() {
  return {.built_with = {}, .names = {}, .why_none = "this dstrain is built without CUDA"};
}

GpusHere look_at_gpus() {
  return {.gpus = {}, .driver = {}, .why_none = find_cuda_devices().why_none};
}

Backend make_cuda_backend(int /*index*/, const CudaOptions& /*options*/) {
  throw std::runtime_error("no GPU to compute with: this dstrain is built without CUDA");
}

}  // namespace dstrain
