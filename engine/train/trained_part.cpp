#include "engine/train/trained_part.h"

#include <string>

#include "engine/config/arch/adapters.h"
#include "engine/config/arch/model_counts.h"
#include "engine/config/arch/tensor_list.h"

namespace dstrain {

std::int64_t trained_parameters(const LayerShape& shape) {
  std::int64_t trained = 0;
  for (const TensorDecl& tensor : architecture_tensors(shape.model)) {
    const bool counts = !is_balancing_bias(tensor.name) && shape.trains(tensor);
    trained += counts ? tensor.shape.numel() : 0;
  }
  for (std::size_t i = 0; i < shape.model.layers.size(); ++i) {
    const std::vector<TensorDecl> block = block_tensors(shape.model, shape.model.layers[i], "");
    for (const TensorDecl& adapter : adapter_tensors(shape.adapters.modules, shape.adapters.rank,
                                                     shape.adapters.magnitudes, block, "")) {
      trained += adapter.shape.numel();
    }
  }
  return trained;
}

double left_out_flops_per_token(const LayerShape& shape) {
  const Architecture& model = shape.model;
  double flops = 0.0;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const LayerSpec& layer = model.layers[i];
    const std::string name = "blocks." + std::to_string(i) + ".";
    const std::vector<TensorDecl> tensors = block_tensors(model, layer, name);
    for (const TensorDecl& tensor : tensors) {
      if (!tensor.hidden_matrix || shape.trains(tensor)) continue;
      const auto& experts = layer.feed_forward.experts;
      const double share = tensor.of_expert && experts ? static_cast<double>(experts->per_token) /
                                                             static_cast<double>(experts->count)
                                                       : 1.0;
      flops += 2.0 * share * static_cast<double>(tensor.shape.numel());
    }
    for (const TensorDecl& adapter : adapter_tensors(shape.adapters.modules, shape.adapters.rank,
                                                     shape.adapters.magnitudes, tensors, name)) {
      flops -= 6.0 * static_cast<double>(adapter.shape.numel());
    }
  }
  const std::vector<TensorDecl> head = head_tensors(model);
  const TensorDecl* const own = find_tensor(head, "head.weight");
  if (!shape.trains(own == nullptr ? embedding_tensors(model).front() : *own)) {
    flops += head_flops_per_token(model) / 3.0;
  }
  return flops;
}

}  // namespace dstrain
