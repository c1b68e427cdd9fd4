#include "engine/model/embedding.h"

#include <utility>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"

namespace dstrain {
namespace {

ParamDecl table_of(const LayerShape& shape) {
  return shape.param(embedding_tensors(shape.model).front());
}

/// transformers rounds the factor to the table's dtype.
float rounded(float value, DType dtype) {
  return dtype == DType::kBF16  ? to_float(to_bf16(value))
         : dtype == DType::kF16 ? to_float(to_f16(value))
                                : value;
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
  embedding.scale_ = rounded(shape.model.embedding_scale, shape.compute);
  embedding.document_positions_ = shape.document_positions;
  embedding.slice_ = vocabulary_slice(shape);
  embedding.dropout_ = StreamDropout(shape, DropoutSite::kEmbedding, shape.dropout.embedding);
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
    embedding.first_position_ = shape.model.first_position;
  }
  return embedding;
}

void Embedding::forward(const LayerContext& context,
                        int slot,
                        ConstTensor tokens_N,
                        Tensor stream) const {
  const TensorParallel& tensor = context.tensor_parallel;
  const Tensor x_NC = tensor.splits_tokens() ? context.buffer(gathered_) : stream;
  const ConstTensor positions = position_.index < 0
                                    ? ConstTensor{}
                                    : context.at_positions(from_first(context.param(position_)));
  context.ops.embedding_forward(tokens_N, context.param(table_), slice_, positions,
                                context.optional_buffer(document_positions_, slot),
                                context.extension ? context.extension->size() : sequence_, x_NC,
                                context.compute);
  tensor.leave_into(x_NC, stream, context.compute);
  scale(context, stream);
  if (dropout_.drops()) {
    dropout_.apply(context, slot, stream, stream);
  }
}

// Only the rank that holds a token's row adds more than zeros to the sum, so scaling the sum scales
// the row.
void Embedding::scale(const LayerContext& context, Tensor stream) const {
  if (scale_ != 1.0F) {
    context.ops.add_scaled(stream, scale_, stream, Write::kOverwrite, context.compute);
  }
}

void Embedding::backward(const LayerContext& context,
                         int slot,
                         ConstTensor tokens_N,
                         Tensor d_stream,
                         Write table_write,
                         const GradTarget& table,
                         const GradTarget& positions) const {
  if (dropout_.drops()) {
    dropout_.apply(context, slot, d_stream, d_stream);
  }
  scale(context, d_stream);
  const ConstTensor dx_NC = context.tensor_parallel.leave_backward(
      d_stream, context.optional_buffer(gathered_), context.compute);
  Tensor d_positions;
  if (position_.index >= 0) {
    const Tensor whole = positions.param(position_);
    d_positions = from_first(whole);
    if (first_position_ > 0 && positions.write == Write::kOverwrite) {
      context.ops.zero(whole.rows(0, first_position_), context.compute);
    }
  }
  const ConstTensor in_documents = context.optional_buffer(document_positions_, slot);
  context.ops.embedding_backward(tokens_N, dx_NC, slice_, sequence_, table.param(table_),
                                 in_documents.empty() ? d_positions : Tensor{}, table_write,
                                 positions.write, context.compute);
  if (!in_documents.empty() && !d_positions.empty()) {
    // With positions given for each token, their rows are looked up like a table's rows by ids.
    context.ops.embedding_backward(in_documents, dx_NC,
                                   {.first = 0, .vocab_size = d_positions.dim(0)}, sequence_,
                                   d_positions, {}, positions.write, Write::kAdd, context.compute);
  }
}

}  // namespace dstrain
