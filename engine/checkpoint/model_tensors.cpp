#include "engine/checkpoint/model_tensors.h"

#include <fmt/format.h>

#include "kernels/core/check.h"

namespace dstrain {
namespace {

class List {
 public:
  explicit List(const ModelSpec& model) : model_(model) {}

  void add(std::string name, Shape shape) { tensors_.push_back({std::move(name), shape}); }
  void add_norm(const std::string& name) {
    add(name + ".weight", {model_.hidden_size});
    if (model_.norm == NormKind::kLayerNorm) {
      add(name + ".bias", {model_.hidden_size});
    }
  }
  void add_linear(const std::string& name, std::int64_t outputs, std::int64_t inputs, bool bias) {
    add(name + ".weight", {outputs, inputs});
    if (bias) {
      add(name + ".bias", {outputs});
    }
  }
  void add_block(std::int64_t index) {
    const ModelSpec& m = model_;
    const std::string block = fmt::format("blocks.{}.", index);
    const std::int64_t query = m.num_heads * m.head_dim;
    const std::int64_t key_value = m.num_key_value_heads * m.head_dim;
    add_norm(block + "attention_norm");
    add_linear(block + "attention.query", query, m.hidden_size, m.qkv_bias);
    add_linear(block + "attention.key", key_value, m.hidden_size, m.qkv_bias);
    add_linear(block + "attention.value", key_value, m.hidden_size, m.qkv_bias);
    add_linear(block + "attention.output", m.hidden_size, query, m.attention_output_bias);
    add_norm(block + "mlp_norm");
    if (m.gated_mlp) {
      add_linear(block + "mlp.gate", m.intermediate_size, m.hidden_size, m.mlp_bias);
    }
    add_linear(block + "mlp.up", m.intermediate_size, m.hidden_size, m.mlp_bias);
    add_linear(block + "mlp.down", m.hidden_size, m.intermediate_size, m.mlp_bias);
  }
  [[nodiscard]] std::vector<ModelTensor> take() { return std::move(tensors_); }

 private:
  const ModelSpec& model_;
  std::vector<ModelTensor> tensors_;
};

}  // namespace

std::vector<ModelTensor> model_tensors(const ModelSpec& model) {
  List list(model);
  list.add("embedding.token.weight", {model.vocab_size, model.hidden_size});
  if (model.position == PositionKind::kLearned) {
    list.add("embedding.position.weight", {model.max_positions, model.hidden_size});
  }
  for (std::int64_t index = 0; index < model.num_layers; ++index) {
    list.add_block(index);
  }
  list.add_norm("final_norm");
  if (!model.tied_embeddings) {
    list.add("head.weight", {model.vocab_size, model.hidden_size});
  }
  return list.take();
}

Piece piece_of(const ModelTensor& tensor, Range flat) {
  Shape start;
  for (int dim = 0; dim < tensor.shape.rank(); ++dim) {
    start.push_back(0);
  }
  return {.tensor = tensor.name,
          .shape = tensor.shape,
          .box_start = start,
          .box_extent = tensor.shape,
          .flat = flat};
}

Piece columns_of(const ModelTensor& tensor, Range columns) {
  check(tensor.shape.rank() == 2, "{} of shape {} has no columns", tensor.name,
        tensor.shape.to_string());
  return {.tensor = tensor.name,
          .shape = tensor.shape,
          .box_start = {0, columns.begin},
          .box_extent = {tensor.shape[0], columns.size()},
          .flat = {0, tensor.shape[0] * columns.size()}};
}

}  // namespace dstrain
