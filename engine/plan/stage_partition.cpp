#include "engine/plan/stage_partition.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace dstrain {

std::vector<std::int64_t> balanced_partition(const ModelSpec& model,
                                             std::int64_t sequence_length,
                                             int stages) {
  // Forward and backward of a matrix of n elements take 6·n FLOPs a token.
  const double head = 6.0 * static_cast<double>(model.vocab_size * model.hidden_size);
  const double blocks = model.flops_per_token(sequence_length) - head;
  return balanced_partition(model.num_layers, blocks / static_cast<double>(model.num_layers), head,
                            stages);
}

/// All blocks cost the same, so only the last stage differs: give it as many blocks as keep it from
/// being the most expensive one, and share the others out evenly.
std::vector<std::int64_t> balanced_partition(std::int64_t blocks,
                                             double block_cost,
                                             double head_cost,
                                             int stages) {
  check(1 <= stages && stages <= blocks, "{} blocks for {} stages", blocks, stages);
  if (stages == 1) {
    return {blocks};
  }
  const std::int64_t others = stages - 1;
  std::int64_t best_last = 1;
  double best_cost = 0.0;
  for (std::int64_t last = 1; last <= blocks - others; ++last) {
    const std::int64_t largest = (blocks - last + others - 1) / others;
    const double cost = std::max(static_cast<double>(largest) * block_cost,
                                 static_cast<double>(last) * block_cost + head_cost);
    if (last == 1 || cost < best_cost) {
      best_last = last;
      best_cost = cost;
    }
  }
  // The remainder goes to the stages in the middle and at the end: the first ones hold the most
  // micro-batches in flight.
  const std::int64_t even = (blocks - best_last) / others;
  const std::int64_t rest = (blocks - best_last) % others;
  std::vector<std::int64_t> partition;
  for (std::int64_t stage = 0; stage < others; ++stage) {
    partition.push_back(even + (stage >= others - rest ? 1 : 0));
  }
  partition.push_back(best_last);
  return partition;
}

}  // namespace dstrain
