#include "engine/config/arch/model_counts.h"

#include <algorithm>

#include "engine/config/arch/tensor_list.h"

namespace dstrain {

std::int64_t num_parameters(const Architecture& architecture) {
  std::int64_t sum = 0;
  for (const TensorDecl& tensor : architecture_tensors(architecture)) {
    sum += tensor.shape.numel();
  }
  return sum;
}

double block_flops_per_token(const Architecture& architecture,
                             const LayerSpec& layer,
                             std::int64_t sequence_length) {
  std::int64_t weights = 0;
  for (const TensorDecl& tensor : block_tensors(architecture, layer, "")) {
    weights += tensor.hidden_matrix ? tensor.shape.numel() : 0;
  }
  const auto all = static_cast<double>(sequence_length);
  const std::int64_t window = layer.attention.window;
  const double most = window == 0 ? all : std::min(all, static_cast<double>(window));
  return 6.0 * static_cast<double>(weights) +
         12.0 * static_cast<double>(layer.attention.query_width()) *
             (most - most * most / (2.0 * all));
}

double head_flops_per_token(const Architecture& architecture) {
  return 6.0 * static_cast<double>(architecture.vocab_size * architecture.hidden_size);
}

double flops_per_token(const Architecture& architecture, std::int64_t sequence_length) {
  double sum = head_flops_per_token(architecture);
  const LayerSpec* before = nullptr;
  double block = 0.0;
  for (const LayerSpec& layer : architecture.layers) {
    if (before == nullptr || layer != *before) {
      block = block_flops_per_token(architecture, layer, sequence_length);
    }
    before = &layer;
    sum += block;
  }
  return sum;
}

}  // namespace dstrain
