// LoadedModel: a GenerationPlan made real on one device, with the weights of a TensorSource.
#pragma once

#include <memory>

#include "engine/checkpoint/tensor_source.h"
#include "engine/comm/communicator.h"
#include "engine/generate/cached_model.h"
#include "engine/parallel/tensor_parallel.h"
#include "engine/runtime/arena.h"
#include "engine/runtime/expert_tally.h"
#include "kernels/core/device.h"
#include "kernels/ops.h"

namespace dstrain {

/// What a loaded model consists of, made before what reads with it.
class LoadedWeights {
 protected:
  LoadedWeights(const GenerationPlan& plan, Ops& ops, Device& device, const TensorSource& weights);
  [[nodiscard]] const LayerContext& context() const { return context_; }

  Arena arena_;

 private:
  void load(const GenerationPlan& plan, const TensorSource& weights);

  ParameterTable parameters_;
  std::unique_ptr<Communicator> alone_;  // stands in for a tensor-parallel group
  TensorParallel tensor_parallel_;
  ExpertTally expert_tally_;
  LayerContext context_;
};

class LoadedModel final : private LoadedWeights, public CachedModel {
 public:
  /// Throws OutOfMemory, and CheckpointError if a parameter is missing or damaged. All but the
  /// weights must outlive the model.
  LoadedModel(const GenerationPlan& plan, Ops& ops, Device& device, const TensorSource& weights);

  /// Bytes allocated, which equal plan.memory.bytes().
  [[nodiscard]] std::int64_t allocated_bytes() const { return arena_.bytes(); }
};

}  // namespace dstrain
