#include "engine/model/embedding.h"

#include <utility>

namespace dstrain {
namespace {

ParamDecl table_of(const LayerShape& shape) {
  return {.name = "embedding.token.weight",
          .shape = {shape.model.vocab_size, shape.model.hidden_size},
          .deviation = shape.model.initializer_range,
          .share = Embedding::vocabulary_share(shape)};
}

}  // namespace

std::int64_t Embedding::vocabulary_rows(const ModelSpec& model, std::int64_t ranks) {
  constexpr std::int64_t kMultiple = 8;
  constexpr std::int64_t kMany = 1024;
  const std::int64_t rows = (model.vocab_size + ranks - 1) / ranks;
  return rows < kMany ? rows : (rows + kMultiple - 1) / kMultiple * kMultiple;
}

VocabSlice Embedding::vocabulary_slice(const LayerShape& shape) {
  const std::int64_t rows = vocabulary_rows(shape.model, shape.tensor.ranks);
  return {.first = shape.tensor.rank * rows, .vocab_size = shape.model.vocab_size};
}

TensorShare Embedding::vocabulary_share(const LayerShape& shape) {
  const std::int64_t rows = vocabulary_rows(shape.model, shape.tensor.ranks);
  return {.start = {shape.tensor.rank * rows, 0}, .extent = {rows, shape.model.hidden_size}};
}

ParamDecl Embedding::table_copy(const LayerShape& shape) {
  ParamDecl table = table_of(shape);
  table.tied_across_stages = true;
  table.tied_copy = true;
  return table;
}

Embedding Embedding::declare(const LayerShape& shape,
                             bool tied_across_stages,
                             Blueprint& blueprint) {
  const ModelSpec& model = shape.model;
  Embedding embedding;
  embedding.sequence_ = shape.sequence;
  embedding.slice_ = vocabulary_slice(shape);
  ParamDecl table = table_of(shape);
  table.tied_across_stages = tied_across_stages;
  embedding.table_ = blueprint.add_param(std::move(table));
  if (shape.tensor.sequence_parallel) {
    embedding.gathered_ = blueprint.add_buffer(
        {"gathered", {shape.tokens(), model.hidden_size}, shape.compute, Lifetime::kScratch});
  }
  if (model.position == PositionKind::kLearned) {
    if (tied_across_stages) {
      blueprint.begin_unit("position");
    }
    embedding.position_ = blueprint.add_param({.name = "embedding.position.weight",
                                               .shape = {model.max_positions, model.hidden_size},
                                               .deviation = model.initializer_range,
                                               .share = shape.tensor.replicated(false)});
  }
  return embedding;
}

void Embedding::forward(const LayerContext& context, ConstTensor tokens_N, Tensor stream) const {
  const TensorParallel& tensor = context.tensor_parallel;
  const Tensor x_NC = tensor.splits_tokens() ? context.buffer(gathered_) : stream;
  const ConstTensor positions =
      position_.index < 0 ? ConstTensor{} : context.at_positions(context.param(position_));
  context.ops.embedding_forward(tokens_N, context.param(table_), slice_, positions,
                                context.extension ? context.extension->size() : sequence_, x_NC,
                                context.compute);
  tensor.leave_into(x_NC, stream, context.compute);
}

void Embedding::backward(const LayerContext& context,
                         ConstTensor tokens_N,
                         ConstTensor d_stream,
                         Write table_write,
                         const GradTarget& table,
                         const GradTarget& positions) const {
  const ConstTensor dx_NC = context.tensor_parallel.leave_backward(
      d_stream, context.optional_buffer(gathered_), context.compute);
  context.ops.embedding_backward(tokens_N, dx_NC, slice_, sequence_, table.param(table_),
                                 position_.index < 0 ? Tensor{} : positions.param(position_),
                                 table_write, positions.write, context.compute);
}

}  // namespace dstrain
