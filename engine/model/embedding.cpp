#include "engine/model/embedding.h"

#include <utility>

namespace dstrain {
namespace {

ParamDecl table_of(const LayerShape& shape) {
  return shape.param(embedding_tensors(shape.model).front());
}

}  // namespace

VocabSlice Embedding::vocabulary_slice(const LayerShape& shape) {
  const std::int64_t rows = vocabulary_rows(shape.model.vocab_size, shape.tensor.ranks);
  return {.first = shape.tensor.rank * rows, .vocab_size = shape.model.vocab_size};
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
  Embedding embedding;
  embedding.sequence_ = shape.sequence;
  embedding.slice_ = vocabulary_slice(shape);
  ParamDecl table = table_of(shape);
  table.tied_across_stages = tied_across_stages;
  embedding.table_ = blueprint.add_param(std::move(table));
  if (shape.tensor.sequence_parallel) {
    embedding.gathered_ = blueprint.add_buffer(
        {"gathered", {shape.tokens(), shape.model.hidden_size}, shape.compute, Lifetime::kScratch});
  }
  if (const auto tensors = embedding_tensors(shape.model); tensors.size() > 1) {
    if (tied_across_stages) {
      blueprint.begin_unit("position");
    }
    embedding.position_ = blueprint.add_param(shape.param(tensors.back()));
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
