// Takes the place of NCCL in a program that was built without CUDA, or without NCCL's header.
#include <stdexcept>

#include <fmt/format.h>

#include "engine/comm/nccl_communicator.h"

namespace dstrain {

namespace {
constexpr const char* kWhy = "this dstrain was built without NCCL";
}

std::unique_ptr<Communicator> make_nccl_communicator(const NcclGroup& group,
                                                     Store& /*store*/,
                                                     Device& /*device*/,
                                                     const NcclOptions& /*options*/) {
  throw std::runtime_error(fmt::format(
      "group \"{}\" has its tensors on GPUs, but {}: build it where nvcc and nccl.h are found",
      group.name, kWhy));
}

NcclLibrary find_nccl() {
  return {.version = "", .why_none = kWhy};
}

}  // namespace dstrain
