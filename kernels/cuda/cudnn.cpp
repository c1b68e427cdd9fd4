#include "kernels/cuda/cudnn.h"

#include <fmt/format.h>

#include "kernels/cuda/open_library.h"

namespace dstrain {
namespace {

/// The library's major version is that of cudnn_graph.h; minor versions are compatible.
const std::string kLibrary = "libcudnn.so.9";
/// The oldest version that has masks with -∞ (9.10) and plans made from a description of the device
/// (9.8).
constexpr std::size_t kOldest = 91000;

}  // namespace

Cudnn open_cudnn() {
  void* const library = open_library(kLibrary, "cuDNN's kernels of attention");
  Cudnn cudnn{};
  const auto find = [&](const char* name, auto& function) {
    find_function(library, name, function);
  };
  find("cudnnGetVersion", cudnn.version);
  find("cudnnGetErrorString", cudnn.error_string);
  find("cudnnGetLastErrorString", cudnn.last_error);
  find("cudnnCreate", cudnn.create);
  find("cudnnDestroy", cudnn.destroy);
  find("cudnnSetStream", cudnn.set_stream);
  find("cudnnBackendCreateDescriptor", cudnn.create_descriptor);
  find("cudnnBackendDestroyDescriptor", cudnn.destroy_descriptor);
  find("cudnnBackendSetAttribute", cudnn.set_attribute);
  find("cudnnBackendGetAttribute", cudnn.get_attribute);
  find("cudnnBackendFinalize", cudnn.finalize);
  find("cudnnBackendExecute", cudnn.execute);
  if (cudnn.version() < kOldest) {
    throw CudaError(
        fmt::format("attention by cuDNN wants 9.10 or later; {} is {}", kLibrary, cudnn.name()));
  }
  return cudnn;
}

}  // namespace dstrain
