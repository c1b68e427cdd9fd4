// Graphs of the emulated cuDNN, computed on the processor in f32 from the descriptors alone: dims,
// strides, types, ids. So a test sees what the graph says, not what its author meant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <cudnn_graph.h>

namespace dstrain::emulated {

/// The attributes set in a descriptor. They are shared with descriptors that refer to it, as in
/// cuDNN, whose descriptors may be destroyed once others have been made of them.
struct CudnnContent {
  explicit CudnnContent(cudnnBackendDescriptorType_t of) : type(of) {}
  cudnnBackendDescriptorType_t type;
  bool adds_in_any_order = false;  ///< an engine
  std::map<cudnnBackendAttributeName_t, std::vector<std::byte>> values;
  std::map<cudnnBackendAttributeName_t, std::vector<std::shared_ptr<CudnnContent>>> references;
};

/// A last dim that this cuDNN does not support.
constexpr std::int64_t kRefusedDim = 104;
/// Bytes that a plan asks for, and checks when it runs.
constexpr std::int64_t kCudnnWorkspace = 4096;

/// Enqueues the work of a graph on the tensors of a variant pack, whose scalars it reads now.
cudnnStatus_t interpret(const std::shared_ptr<CudnnContent>& graph,
                        const CudnnContent& pack,
                        cudaStream_t stream);

}  // namespace dstrain::emulated
