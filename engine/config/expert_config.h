// ExpertParallelConfig: which ranks hold other experts of the same layers
// (engine/model/expert_exchange.h).
#pragma once

namespace dstrain {

/// "expert_parallel": ranks with other tokens, each of which holds some of the experts.
struct ExpertParallelConfig {
  int size = 1;  ///< also expert_model_parallel_size; divides the experts and the ranks of a stage
  bool operator==(const ExpertParallelConfig&) const = default;
};

}  // namespace dstrain
