// Messages about NCCL and its failures, however the table of its functions was filled.
#include <fmt/format.h>

#include "engine/comm/nccl.h"
#include "engine/comm/nccl_communicator.h"
#include "kernels/cuda/cuda_check.h"

namespace dstrain {

std::string Nccl::version() const {
  int code = 0;
  check(get_version(&code), "ncclGetVersion");
  return fmt::format("NCCL {}.{}.{}", code / 10'000, code / 100 % 100, code % 100);
}

std::string Nccl::describe(ncclResult_t status) const {
  std::string text = error_string(status);
  // The last error is the process's, not a communicator's, so a null one will do.
  if (const char* const words = last_error(nullptr); words != nullptr && *words != '\0') {
    text += fmt::format(" ({})", words);
  }
  return text;
}

void Nccl::check(ncclResult_t status, std::string_view call) const {
  if (status != ncclSuccess && status != ncclInProgress) {
    throw CudaError(fmt::format("{} failed: {}", call, describe(status)));
  }
}

NcclLibrary find_nccl() {
  try {
    return {.version = open_nccl().version(), .why_none = ""};
  } catch (const CudaError& failure) {
    return {.version = "", .why_none = failure.what()};
  }
}

}  // namespace dstrain
