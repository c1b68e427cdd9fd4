// ExpertParallelConfig: which ranks hold other experts of the same layers
// (engine/model/expert_exchange.h).
#pragma once

#include <optional>

namespace dstrain {

/// "expert_parallel": ranks with other tokens, each of which holds some of the experts.
struct ExpertParallelConfig {
  int size = 1;  ///< also expert_model_parallel_size; divides the experts and the ranks of a stage
  /// Also expert_tensor_parallel_size: the ranks that have parts of each expert. Absent: those of
  /// tensor parallelism.
  std::optional<int> tensor_size;

  [[nodiscard]] int tensor_ranks(int tensor_parallel_size) const {
    return tensor_size.value_or(tensor_parallel_size);
  }
  bool operator==(const ExpertParallelConfig&) const = default;
};

}  // namespace dstrain
