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
  embedding.sequence_ = shape.own_sequence();
  embedding.scale_ = rounded(shape.model.embedding_scale, shape.compute);
  embedding.token_positions_ = shape.token_positions;
  embedding.slice_ = vocabulary_slice(shape);
  embedding.noise_ = EmbeddingNoise(shape);
  embedding.dropout_ = StreamDropout(shape, DropoutSite::kEmbedding, shape.dropout.embedding);
  ParamDecl table = table_of(shape);
  table.tied_across_stages = tied_across_stages;
  embedding.table_ = blueprint.add_param(std::move(table));
  if (shape.tensor.sequence_parallel) {
    embedding.gathered_ = blueprint.add_buffer(
        {"gathered", {shape.tokens(), shape.model.hidden_size}, shape.compute, Lifetime::kScratch});
  }
  const std::vector<TensorDecl> tensors = embedding_tensors(shape.model);
  if (shape.model.learned_positions > 0) {
    if (tied_across_stages) {
      blueprint.begin_unit("position");
    }
    embedding.position_ = blueprint.add_param(shape.param(tensors.at(1)));
    embedding.first_position_ = shape.model.first_position;
  }
  if (shape.model.embedding_norm) {
    blueprint.begin_unit("embedding_norm");
    LayerShape of_norm = shape;
    of_norm.tensors = tensors;
    embedding.norm_ = Norm::declare(of_norm, shape.model.final_norm, kEmbeddingNorm, Origin::kInput,
                                    Norm::Output::kElsewhere, blueprint);
  }
  return embedding;
}

std::vector<int> Embedding::units() const {
  std::vector<int> all{table_.unit};
  if (position_.unit > table_.unit) {
    all.push_back(position_.unit);
  }
  for (const int unit : units_of_backward()) {
    all.push_back(unit);
  }
  return all;
}

// The gradient of a table look-up needs no table.
std::vector<int> Embedding::units_of_backward() const {
  return norm_ ? std::vector<int>{norm_->unit()} : std::vector<int>{};
}

void Embedding::forward(const LayerContext& context,
                        int slot,
                        ConstTensor tokens_N,
                        Tensor stream) const {
  const TensorParallel& tensor = context.tensor_parallel;
  const Tensor rows = norm_ ? norm_->residual(context, slot) : stream;
  const Tensor x_NC = tensor.splits_tokens() ? context.buffer(gathered_) : rows;
  const ConstTensor positions =
      position_.index < 0 ? ConstTensor{} : from_first(context.param(position_));
  const auto look_up = [&](ConstTensor tokens, ConstTensor at, std::int64_t sequence, Tensor x) {
    context.ops.embedding_forward(tokens, context.param(table_), slice_, at,
                                  context.optional_buffer(token_positions_, slot), sequence, x,
                                  context.compute);
  };
  if (!context.extension || positions.empty()) {
    look_up(tokens_N, positions, context.extension ? context.extension->tokens : sequence_, x_NC);
  } else {
    context.extension->for_each_text([&](const Extension::Text& text, Range of) {
      look_up(tokens_N.flat(of.begin, of.end),
              positions.rows(text.positions.begin, text.positions.end), of.size(),
              x_NC.rows(of.begin, of.end));
    });
  }
  tensor.leave_into(x_NC, rows, context.compute);
  scale(context, rows);
  noise_.add(context, slot, rows);
  if (norm_) {
    norm_->forward_into(context, slot, rows, {}, stream);
  }
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
                         const Gradients& gradients) const {
  if (dropout_.drops()) {
    dropout_.apply(context, slot, d_stream, d_stream);
  }
  if (norm_) {
    norm_->backward(context, slot, d_stream, d_stream, Write::kOverwrite, gradients.norm);
  }
  scale(context, d_stream);
  if (!gradients.table.wants(table_)) {
    return;  // nor are positions trained
  }
  const ConstTensor dx_NC = context.tensor_parallel.leave_backward(
      d_stream, context.optional_buffer(gathered_), context.compute);
  Tensor d_positions;
  if (position_.index >= 0) {
    const Tensor whole = gradients.positions.param(position_);
    d_positions = from_first(whole);
    if (first_position_ > 0 && gradients.positions.write == Write::kOverwrite) {
      context.ops.zero(whole.rows(0, first_position_), context.compute);
    }
  }
  const ConstTensor token_positions = context.optional_buffer(token_positions_, slot);
  context.ops.embedding_backward(tokens_N, dx_NC, slice_, sequence_, gradients.table.param(table_),
                                 token_positions.empty() ? d_positions : Tensor{},
                                 gradients.table_write, gradients.positions.write, context.compute);
  if (!token_positions.empty() && !d_positions.empty()) {
    // Rows by positions that are tokens' own are a table's rows by its ids.
    context.ops.embedding_backward(
        token_positions, dx_NC, {.first = 0, .vocab_size = d_positions.dim(0)}, sequence_,
        d_positions, {}, gradients.positions.write, Write::kAdd, context.compute);
  }
}

}  // namespace dstrain
