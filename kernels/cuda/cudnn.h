// cuDNN's graph interface, opened at run time: libcudnn.so.9 and what it opens itself are half a
// gigabyte, and dstrain computes without them.
#pragma once

#include <string>
#include <string_view>

#include <cudnn_graph.h>

namespace dstrain {

/// The functions that are used.
struct Cudnn {
  decltype(&cudnnGetVersion) version;
  decltype(&cudnnGetErrorString) error_string;
  decltype(&cudnnGetLastErrorString) last_error;
  decltype(&cudnnCreate) create;
  decltype(&cudnnDestroy) destroy;
  decltype(&cudnnSetStream) set_stream;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor;
  decltype(&cudnnBackendSetAttribute) set_attribute;
  decltype(&cudnnBackendGetAttribute) get_attribute;
  decltype(&cudnnBackendFinalize) finalize;
  decltype(&cudnnBackendExecute) execute;

  /// "cuDNN 9.19.0".
  [[nodiscard]] std::string name() const;
  /// "CUDNN_STATUS_NOT_SUPPORTED: …", with what the library says of its last error.
  [[nodiscard]] std::string explain(cudnnStatus_t status) const;
  /// Throws CudaError with the call's name where it failed.
  void check(cudnnStatus_t status, std::string_view call) const;
};

/// Opens the library beside the program (lib/), where the loader looks, or in the toolkit that the
/// program was built with. Throws CudaError, saying where it looked, or that the version is older
/// than what is used of it.
Cudnn open_cudnn();

}  // namespace dstrain
