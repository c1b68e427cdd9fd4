// Compiled in place of cudnn*.cpp where the toolkit has no headers of cuDNN.
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/cudnn_attention.h"

namespace dstrain {

struct CudnnAttention::Impl {};

CudnnAttention::CudnnAttention(int /*device*/) {
  throw CudaError("this dstrain is built without cuDNN's headers (cudnn_graph.h)");
}
CudnnAttention::~CudnnAttention() = default;

std::string CudnnAttention::name() const {
  return {};
}
const std::string& CudnnAttention::why_not(const AttentionPass& /*pass*/) {
  throw CudaError("without cuDNN");
}
void CudnnAttention::run(const AttentionPass& /*pass*/,
                         const AttentionPointers& /*pointers*/,
                         cudaStream_t /*stream*/) {
  throw CudaError("without cuDNN");
}

}  // namespace dstrain
