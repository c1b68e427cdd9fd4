#include "kernels/cuda/cuda_graph_replay.h"

#include "kernels/core/check.h"
#include "kernels/core/stream_decorator.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/cuda_stream.h"

namespace dstrain {
namespace {

CudaStream& cuda_stream(Stream& stream) {
  auto* const cuda = dynamic_cast<CudaStream*>(&innermost(stream));
  check(cuda != nullptr, "a graph of a GPU's work on a stream that is not of CUDA");
  return *cuda;
}

}  // namespace

CudaGraphReplay::~CudaGraphReplay() {
  (void)cudaSetDevice(device_);
  for (const auto& [key, graph] : graphs_) {
    if (graph != nullptr) {
      (void)cudaGraphExecDestroy(graph);
    }
  }
}

GraphReplay::Begun CudaGraphReplay::begin(const GraphKey& key, Stream& stream) {
  const auto found = graphs_.find(key);
  if (found == graphs_.end()) {
    if (graphs_.size() < kMostGraphs) {
      graphs_.emplace(key, nullptr);
    }
    return Begun::kPlain;
  }
  CudaStream& cuda = cuda_stream(stream);
  if (found->second != nullptr) {
    cuda_check(cudaGraphLaunch(found->second, cuda.use()), "cudaGraphLaunch");
    return Begun::kReplayed;
  }
  // Captures only this thread's calls: others may allocate and copy meanwhile.
  cuda_check(cudaStreamBeginCapture(cuda.use(), cudaStreamCaptureModeThreadLocal),
             "cudaStreamBeginCapture");
  cuda.set_recording(true);
  return Begun::kRecording;
}

void CudaGraphReplay::end(const GraphKey& key, Stream& stream) {
  CudaStream& cuda = cuda_stream(stream);
  cuda.set_recording(false);
  cudaGraph_t recorded = nullptr;
  cuda_check(cudaStreamEndCapture(cuda.use(), &recorded), "cudaStreamEndCapture");
  cudaGraphExec_t& graph = graphs_.at(key);
  const cudaError_t status = cudaGraphInstantiate(&graph, recorded, 0);
  (void)cudaGraphDestroy(recorded);
  cuda_check(status, "cudaGraphInstantiate");
  ++num_graphs_;
  cuda_check(cudaGraphLaunch(graph, cuda.use()), "cudaGraphLaunch");
}

void CudaGraphReplay::abandon(Stream& stream) noexcept {
  auto* const cuda = dynamic_cast<CudaStream*>(&innermost(stream));
  if (cuda == nullptr) {
    return;
  }
  cuda->set_recording(false);
  cudaGraph_t recorded = nullptr;
  if (cudaStreamEndCapture(cuda->use(), &recorded) == cudaSuccess && recorded != nullptr) {
    (void)cudaGraphDestroy(recorded);
  }
  (void)cudaGetLastError();  // of a capture that was broken off: no later launch is to report it
}

}  // namespace dstrain
