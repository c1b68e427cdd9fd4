#include "engine/model/embedding.h"

namespace dstrain {

Embedding Embedding::declare(const LayerShape& shape, Blueprint& blueprint) {
  const ModelSpec& model = shape.model;
  Embedding embedding;
  embedding.sequence_ = shape.sequence;
  embedding.vocabulary_ = {.first = 0, .vocab_size = model.vocab_size};
  embedding.table_ = blueprint.add_param({.name = "embedding.token.weight",
                                          .shape = {model.vocab_size, model.hidden_size},
                                          .deviation = model.initializer_range});
  if (model.position == PositionKind::kLearned) {
    embedding.position_ = blueprint.add_param({.name = "embedding.position.weight",
                                               .shape = {model.max_positions, model.hidden_size},
                                               .deviation = model.initializer_range});
  }
  return embedding;
}

void Embedding::forward(const ExecContext& context, ConstTensor tokens_N, Tensor x_NC) const {
  context.ops.embedding_forward(tokens_N, context.param(table_), vocabulary_,
                                position_.index < 0 ? ConstTensor{} : context.param(position_),
                                sequence_, x_NC, context.compute);
}

void Embedding::backward(const ExecContext& context,
                         ConstTensor tokens_N,
                         ConstTensor dx_NC,
                         Write table_write,
                         const GradTarget& gradients) const {
  context.ops.embedding_backward(tokens_N, dx_NC, vocabulary_, sequence_, gradients.param(table_),
                                 position_.index < 0 ? Tensor{} : gradients.param(position_),
                                 table_write, gradients.write, context.compute);
}

}  // namespace dstrain
