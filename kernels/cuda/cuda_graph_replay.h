// GraphReplay on CUDA graphs.
#pragma once

#include <map>

#include <cuda_runtime_api.h>

#include "kernels/graph_replay.h"

namespace dstrain {

class CudaGraphReplay final : public GraphReplay {
 public:
  /// The most graphs that are kept; work beyond them is enqueued part by part: a run whose operands
  /// never come back must not collect graphs for ever.
  static constexpr std::size_t kMostGraphs = 4096;

  explicit CudaGraphReplay(int device) : device_(device) {}
  ~CudaGraphReplay() override;

  /// The number of graphs that are kept.
  [[nodiscard]] std::size_t num_graphs() const { return num_graphs_; }

 protected:
  Begun begin(const GraphKey& key, Stream& stream) override;
  void end(const GraphKey& key, Stream& stream) override;
  void abandon(Stream& stream) noexcept override;

 private:
  int device_;
  std::size_t num_graphs_ = 0;
  std::map<GraphKey, cudaGraphExec_t> graphs_;  // nullptr: was run once
};

}  // namespace dstrain
