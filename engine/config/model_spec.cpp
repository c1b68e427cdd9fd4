#include "engine/config/model_spec.h"

#include "engine/config/arch/tensor_list.h"

namespace dstrain {

std::int64_t ModelSpec::num_parameters() const {
  std::int64_t sum = 0;
  for (const TensorDecl& tensor : architecture_tensors(*this)) {
    sum += tensor.shape.numel();
  }
  return sum;
}

double ModelSpec::flops_per_token(std::int64_t sequence_length) const {
  const Architecture architecture(*this);
  double sum = 6.0 * static_cast<double>(vocab_size * hidden_size);
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
