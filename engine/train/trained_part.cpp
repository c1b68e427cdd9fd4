#include "engine/train/trained_part.h"

#include <string>

#include "engine/config/arch/adapters.h"
#include "engine/config/arch/model_counts.h"
#include "engine/config/arch/tensor_list.h"

namespace dstrain {

AdapterShape adapters_of(const Config& config) {
  const AdapterConfig& adapters = config.adapters;
  AdapterShape shape{.rank = adapters.rank, .scale = static_cast<float>(adapters.scale())};
  if (!adapters.enabled()) return shape;
  shape.magnitudes = adapters.magnitudes;
  shape.dropout = static_cast<float>(adapters.dropout);
  shape.modules = modules_named(linear_modules(config.model), adapters.target_modules);
  shape.whole.patterns = tensors_of_modules(config.model, adapters.modules_to_save);
  return shape;
}

LayerShape trained_part_of(const Config& config) {
  return {.model = Architecture(config.model),
          .frozen = config.training.freeze,
          .adapters = adapters_of(config)};
}

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
  double flops = left_out_flops_of_head(shape);
  for (std::size_t block = 0; block < shape.model.layers.size(); ++block) {
    flops += left_out_flops_of_block(shape, block);
  }
  return flops;
}

double left_out_flops_of_block(const LayerShape& shape, std::size_t block) {
  const LayerSpec& layer = shape.model.layers.at(block);
  const std::string name = "blocks." + std::to_string(block) + ".";
  const std::vector<TensorDecl> tensors = block_tensors(shape.model, layer, name);
  double flops = 0.0;
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
  return flops;
}

double left_out_flops_of_head(const LayerShape& shape) {
  const std::vector<TensorDecl> head = head_tensors(shape.model);
  const TensorDecl* const own = find_tensor(head, "head.weight");
  const bool is_trained =
      shape.trains(own == nullptr ? embedding_tensors(shape.model).front() : *own);
  return is_trained ? 0.0 : head_flops_per_token(shape.model) / 3.0;
}

}  // namespace dstrain
