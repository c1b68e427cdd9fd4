#include "engine/config/arch/model_counts.h"

#include <algorithm>
#include <optional>

#include "engine/config/arch/tensor_list.h"

namespace dstrain {
namespace {

enum class Counted : std::uint8_t { kAll, kMatrices };

/// The numbers of a block's tensors that a token goes through: of experts, those that it chooses.
std::int64_t active_numel(const Architecture& architecture,
                          const LayerSpec& layer,
                          Counted counted) {
  std::int64_t sum = 0;
  std::int64_t of_experts = 0;
  for (const TensorDecl& tensor : block_tensors(architecture, layer, "")) {
    if (is_balancing_bias(tensor.name)) continue;
    if (counted == Counted::kMatrices && !tensor.hidden_matrix) continue;
    (tensor.of_expert ? of_experts : sum) += tensor.shape.numel();
  }
  const std::optional<ExpertsSpec>& experts = layer.feed_forward.experts;
  return experts ? sum + of_experts / experts->count * experts->per_token : sum;
}

}  // namespace

std::int64_t num_parameters(const Architecture& architecture) {
  std::int64_t sum = 0;
  for (const TensorDecl& tensor : architecture_tensors(architecture)) {
    sum += is_balancing_bias(tensor.name) ? 0 : tensor.shape.numel();
  }
  return sum;
}

std::int64_t active_parameters(const Architecture& architecture) {
  std::int64_t sum = 0;
  for (const auto& outside : {embedding_tensors(architecture), head_tensors(architecture)}) {
    for (const TensorDecl& tensor : outside) {
      sum += tensor.shape.numel();
    }
  }
  for (const LayerSpec& layer : architecture.layers) {
    sum += active_numel(architecture, layer, Counted::kAll);
  }
  return sum;
}

double block_flops_per_token(const Architecture& architecture,
                             const LayerSpec& layer,
                             std::int64_t sequence_length) {
  const std::int64_t weights = active_numel(architecture, layer, Counted::kMatrices);
  const auto all = static_cast<double>(sequence_length);
  const std::int64_t window = layer.attention.window;
  const double most = window == 0 ? all : std::min(all, static_cast<double>(window));
  return 6.0 * static_cast<double>(weights) +
         6.0 * static_cast<double>(layer.attention.query_width() + layer.attention.result_width()) *
             (most - most * most / (2.0 * all));
}

double head_flops_per_token(const Architecture& architecture) {
  const std::int64_t rows = architecture.scores ? 1 : architecture.vocab_size;
  return 6.0 * static_cast<double>(rows * architecture.hidden_size);
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
