#include "engine/model/loss_head.h"

#include <algorithm>

#include "engine/config/arch/tensor_list.h"
#include "engine/model/embedding.h"

namespace dstrain {
namespace {

/// The shape that the final norm is declared with.
LayerShape norm_shape(LayerShape shape) {
  if (shape.extends_cache()) {
    shape.sequence = shape.cache_texts;  // the last token of each
  }
  return shape;
}

/// The context of a forward pass of each text's last token alone.
LayerContext at_last_tokens(LayerContext context) {
  context.extension->tokens = std::ssize(context.extension->texts);
  return context;
}

}  // namespace

LossHead LossHead::declare(const LayerShape& shape,
                           ParamRef embedding_table,
                           Blueprint& blueprint) {
  const std::int64_t tokens = shape.tokens();
  LossHead head;
  head.tokens_ = tokens;
  head.batch_ = shape.batch;
  head.sequence_chunks_ = shape.context.chunks();
  head.tied_ = shape.model.tied_embeddings;
  head.scores_ = shape.model.scores;
  head.logit_cap_ = shape.model.logit_cap;
  head.slice_ = Embedding::vocabulary_slice(shape);
  head.norm_ = Norm::declare(norm_shape(shape), shape.model.final_norm, "final_norm",
                             Origin::kInput, Norm::Output::kKept, blueprint);
  head.weight_ = head.tied_ ? embedding_table
                            : blueprint.add_param(shape.param(shape.tensor_named("head.weight")));
  const bool has_values = shape.model.values;
  if (has_values) {
    head.value_weight_ = blueprint.add_param(shape.param(shape.tensor_named(kValueHead)));
  }
  const std::int64_t columns = vocabulary_rows(shape.model.vocab_size, shape.tensor.ranks);
  if (shape.model.unit_head) {
    head.squares_ = blueprint.add_buffer(
        {"head_squares", {columns}, DType::kF32, Lifetime::kScratch, LayerKind::kLogits});
  }
  if (shape.extends_cache()) {
    if (shape.cache_texts > 1) {
      const auto last = [&](const char* name) {
        return blueprint.add_buffer({name,
                                     {shape.cache_texts, shape.model.hidden_size},
                                     shape.compute,
                                     Lifetime::kScratch});
      };
      head.last_residual_ = last("last_residual");
      head.last_delta_ = last("last_delta");
    }
    // Logits are f32 whatever the blocks compute in, since tokens are drawn from them.
    head.logits_ = blueprint.add_buffer({"logits",
                                         {shape.cache_texts, head.scores_ ? 1 : columns},
                                         DType::kF32,
                                         Lifetime::kScratch,
                                         LayerKind::kLogits});
    if (shape.tensor.ranks > 1 && !head.scores_) {
      head.all_logits_ = blueprint.add_buffer({"all_logits",
                                               {shape.tensor.ranks, shape.cache_texts, columns},
                                               DType::kF32,
                                               Lifetime::kScratch,
                                               LayerKind::kLogits});
    }
    return head;
  }
  const auto add = [&](const char* name, const Shape& of, DType dtype) {
    return blueprint.add_backward_buffer({name, of, dtype, Lifetime::kScratch});
  };
  head.losses_ = add("losses", {tokens}, DType::kF32);
  head.d_norm_ = add("d_norm", {tokens, shape.model.hidden_size}, shape.compute);
  head.loss_sum_ = add("loss_sum", {1}, DType::kF64);
  if (shape.weighs_targets) head.weights_ = add("target_weights", {tokens}, DType::kF32);
  if (shape.tensor.sequence_parallel) {
    head.gathered_ = add("gathered", {tokens, shape.model.hidden_size}, shape.compute);
  }
  if (head.scores_ || has_values) head.d_one_row_ = add("d_one_row", {tokens, 1}, shape.compute);
  if (head.scores_) return head;
  // Chunks are of even size, as each reads the whole weight and adds to its whole gradient.
  head.chunk_tokens_ = shape.tile_tokens(
      shape.loss_tile_tokens > 0
          ? shape.loss_tile_tokens
          : std::max<std::int64_t>(1, kMaxChunkBytes / (columns * size_of(shape.compute))));
  head.logits_ = blueprint.add_backward_buffer({"logits",
                                                {head.chunk_tokens_, columns},
                                                shape.compute,
                                                Lifetime::kScratch,
                                                LayerKind::kLogits});
  head.stats_ = add("vocabulary_stats", {shape.tensor.ranks, head.chunk_tokens_, 3}, DType::kF32);
  head.logsumexp_ = add("vocabulary_logsumexp", {head.chunk_tokens_}, DType::kF32);
  if (shape.skips_targets) {
    head.moved_ = add("moved_rows", {tokens, shape.model.hidden_size}, shape.compute);
    head.moved_losses_ = add("moved_losses", {tokens}, DType::kF32);
    head.moved_hits_ = add("moved_hits", {tokens}, DType::kF32);
    if (shape.weighs_targets) {
      head.moved_weights_ = add("moved_weights", {tokens}, DType::kF32);
    }
    if (shape.tensor.ranks > 1) {
      head.told_stats_ =
          add("told_stats", {shape.tensor.ranks, head.chunk_tokens_, 3}, DType::kF32);
    }
  }
  head.hits_ = add("hits", {tokens}, DType::kF32);
  head.hit_sum_ = add("hit_sum", {1}, DType::kF64);
  if (has_values) {
    head.values_ = add("values", {tokens}, DType::kF32);
    head.value_weights_ = add("value_weights", {tokens}, DType::kF32);
    head.d_value_input_ =
        add("d_value_input", {head.chunk_tokens_, shape.model.hidden_size}, shape.compute);
  }
  return head;
}

void LossHead::forward(const LayerContext& context,
                       int slot,
                       ConstTensor residual,
                       ConstTensor delta) const {
  if (!context.extension) {
    norm_.forward(context, slot, residual, delta);
    return;
  }
  const LayerContext last = at_last_tokens(context);
  const std::int64_t tokens = residual.dim(0);
  const std::int64_t texts = last.extension->tokens;
  if (texts == 1 || texts == tokens) {
    norm_.forward(last, slot, residual.rows(tokens - texts, tokens),
                  delta.rows(tokens - texts, tokens));
    return;
  }
  const Tensor last_residual = context.buffer(last_residual_).rows(0, texts);
  const Tensor last_delta = context.buffer(last_delta_).rows(0, texts);
  std::int64_t to = 0;
  context.extension->for_each_text([&](const Extension::Text&, Range rows) {
    const auto copy_last = [&](ConstTensor from, Tensor into) {
      context.device.copy(from.rows(rows.end - 1, rows.end), into.rows(to, to + 1),
                          context.compute);
    };
    copy_last(residual, last_residual);
    copy_last(delta, last_delta);
    ++to;
  });
  norm_.forward(last, slot, last_residual, last_delta);
}

ConstTensor LossHead::next_logits(const LayerContext& context) const {
  const std::int64_t texts = std::ssize(context.extension->texts);
  const Tensor logits = context.buffer(logits_).rows(0, texts);
  const ConstTensor hidden = norm_.output(at_last_tokens(context), 0);
  if (scores_) {
    context.ops.linear_forward(hidden, context.param(weight_), {}, logits, context.compute);
    return logits.view({1, texts, 1});
  }
  measure_rows(context);
  compute_logits(context, hidden, logits);
  const std::int64_t columns = logits.dim(1);
  const TensorParallel& tensor = context.tensor_parallel;
  if (tensor.size() == 1) return logits.view({1, texts, columns});
  const std::int64_t size = texts * columns;
  const Tensor all = context.buffer(all_logits_).flat(0, tensor.size() * size);
  const Tensor mine = all.flat(tensor.rank() * size, (tensor.rank() + 1) * size);
  context.device.copy(logits.view({size}), mine, context.compute);
  tensor.group().all_gather(mine, all, Purpose::kActivation, context.compute);
  return all.view({tensor.size(), texts, columns});
}

void LossHead::measure_rows(const LayerContext& context) const {
  if (squares_.index >= 0) {
    const ConstTensor weight = context.param(weight_);
    context.ops.group_squares(weight, weight.dim(1), context.buffer(squares_), context.compute);
  }
}

void LossHead::compute_logits(const LayerContext& context,
                              ConstTensor hidden,
                              Tensor logits) const {
  context.ops.linear_forward(hidden, context.param(weight_), {}, logits, context.compute);
  if (squares_.index >= 0) {
    context.ops.divide_columns(logits, context.buffer(squares_), context.compute);
  }
  if (logit_cap_ > 0.0F) {
    context.ops.soft_cap(logits, logit_cap_, context.compute);
  }
}

void LossHead::combine_losses(const LayerContext& context,
                              const Chunk& chunk,
                              ConstTensor logits,
                              ConstTensor targets,
                              Tensor losses) const {
  const TensorParallel& tensor = context.tensor_parallel;
  const std::int64_t rows = chunk.rows();
  const bool tells_more = tensor.size() > 1 && rows < chunk.told;
  const Tensor stats = context.buffer(stats_).flat(0, tensor.size() * rows * 3);
  const Tensor told =
      tells_more ? context.buffer(told_stats_).flat(0, tensor.size() * chunk.told * 3) : stats;
  const auto of_rank = [&](int rank) {
    const std::int64_t size = told.numel() / tensor.size();
    return told.flat(rank * size, (rank + 1) * size);
  };
  if (rows > 0) {
    const Tensor mine = of_rank(tensor.rank()).flat(0, rows * 3).view({rows, 3});
    context.ops.cross_entropy_partial(logits, targets, slice_, mine, context.compute);
  }
  if (tensor.size() > 1) {
    tensor.group().all_gather(of_rank(tensor.rank()), told, Purpose::kActivation, context.compute);
  }
  if (rows == 0) return;
  for (int rank = 0; tells_more && rank < tensor.size(); ++rank) {
    context.device.copy(of_rank(rank).flat(0, rows * 3),
                        stats.flat(rank * rows * 3, (rank + 1) * rows * 3), context.compute);
  }
  context.ops.cross_entropy_combine(stats.view({tensor.size(), rows, 3}),
                                    context.buffer(logsumexp_).flat(0, rows), losses,
                                    context.compute);
}

LossHead::Rows LossHead::rows_of(const LayerContext& context,
                                 ConstTensor hidden_N,
                                 const HeadTargets& targets,
                                 Tensor hits_N) const {
  if (targets.rows_M.empty()) {
    return {.count = tokens_,
            .moved = {},
            .hidden = hidden_N,
            .targets = targets.targets_N,
            .losses = context.buffer(losses_),
            .hits = hits_N};
  }
  const std::int64_t count = targets.rows_M.numel();
  const Tensor moved = context.buffer(moved_).rows(0, count);
  context.ops.gather_rows(hidden_N, targets.rows_M, 1, {}, moved, context.compute);
  return {.count = count,
          .moved = moved,
          .hidden = moved,
          .targets = targets.targets_M,
          .losses = context.buffer(moved_losses_).flat(0, count),
          .hits = hits_N.empty() ? Tensor{} : context.buffer(moved_hits_).flat(0, count)};
}

void LossHead::put_back(const LayerContext& context,
                        ConstTensor of_rows,
                        const HeadTargets& targets,
                        Tensor of_tokens) {
  if (targets.rows_M.empty() || of_tokens.empty()) return;
  const std::int64_t tokens = targets.places_N.numel();
  const auto matrix = [](const auto& tensor, std::int64_t rows) {
    return tensor.view({rows, tensor.numel() / rows});
  };
  context.ops.sum_rows(matrix(of_rows, targets.rows_M.numel()), targets.places_N.view({tokens, 1}),
                       {}, matrix(of_tokens, tokens), Write::kOverwrite, context.compute);
}

template <typename Body>
void LossHead::for_each_chunk(const LayerContext& context, std::int64_t rows, Body&& body) const {
  if (context.tensor_parallel.size() > 1) {
    for (std::int64_t begin = 0; begin < tokens_; begin += chunk_tokens_) {
      const std::int64_t end = std::min(begin + chunk_tokens_, tokens_);
      body(Chunk{std::min(begin, rows), std::min(end, rows), end - begin});
    }
    return;
  }
  // Chunks of fewer rows than is planned are of even size, too.
  const std::int64_t chunks = (rows + chunk_tokens_ - 1) / chunk_tokens_;
  const std::int64_t size = rows == tokens_ ? chunk_tokens_ : (rows + chunks - 1) / chunks;
  for (std::int64_t begin = 0; begin < rows; begin += size) {
    const std::int64_t end = std::min(begin + size, rows);
    body(Chunk{begin, end, end - begin});
  }
}

void LossHead::compute_losses(const LayerContext& context,
                              int slot,
                              const HeadTargets& targets,
                              Tensor hits_N) const {
  const ConstTensor hidden = context.tensor_parallel.enter(
      norm_.output(context, slot), context.optional_buffer(gathered_), context.compute);
  if (scores_) {
    context.ops.linear_forward(hidden, context.param(weight_), {},
                               context.buffer(losses_).view({tokens_, 1}), context.compute);
    return;
  }
  if (has_values()) {
    context.ops.linear_forward(hidden, context.param(value_weight_), {},
                               context.buffer(values_).view({tokens_, 1}), context.compute);
  }
  measure_rows(context);
  const Rows rows = rows_of(context, hidden, targets, hits_N);
  for_each_chunk(context, rows.count, [&](const Chunk& chunk) {
    const auto [begin, end, told] = chunk;
    const std::int64_t size = chunk.rows();
    const Tensor logits = context.buffer(logits_).rows(0, size);
    const ConstTensor chunk_targets = rows.targets.flat(begin, end);
    if (size > 0) compute_logits(context, rows.hidden.rows(begin, end), logits);
    const int ranks = context.tensor_parallel.size();
    if (ranks > 1 || !hits_N.empty()) {
      combine_losses(context, chunk, logits, chunk_targets, rows.losses.flat(begin, end));
      if (hits_N.empty() || size == 0) return;
      context.ops.find_hits(context.buffer(stats_).flat(0, ranks * size * 3).view({ranks, size, 3}),
                            chunk_targets, rows.hits.flat(begin, end), context.compute);
    } else {
      context.ops.cross_entropy_forward(logits, chunk_targets, slice_.vocab_size,
                                        rows.losses.flat(begin, end), context.compute);
    }
  });
  put_back(context, rows.losses, targets, context.buffer(losses_));
  put_back(context, rows.hits, targets, hits_N);
}

void LossHead::evaluate(const LayerContext& context,
                        int slot,
                        const HeadTargets& targets,
                        std::int64_t counted_samples,
                        Write loss_write) const {
  if (scores_) return compute_losses(context, slot, targets, {});
  const Tensor hits = context.buffer(hits_);
  compute_losses(context, slot, targets, hits);
  const Tensor losses = context.buffer(losses_);
  const std::int64_t chunk = tokens_ / sequence_chunks_;
  for (std::int64_t begin = 0; begin < tokens_; begin += chunk) {
    const std::int64_t end = begin + chunk / batch_ * counted_samples;
    const Write write = begin == 0 ? loss_write : Write::kAdd;
    context.ops.sum(losses.flat(begin, end), loss_sum(context), write, context.compute);
    context.ops.sum(hits.flat(begin, end), hit_sum(context), write, context.compute);
  }
}

void LossHead::backward(const LayerContext& context,
                        int slot,
                        const HeadTargets& targets,
                        float gradient_scale,
                        bool weighed,
                        Write loss_write,
                        Tensor d_residual,
                        const GradTarget& head_gradients,
                        const GradTarget& embedding_gradients) const {
  const TensorParallel& tensor = context.tensor_parallel;
  const ConstTensor hidden = tensor.enter(norm_.output(context, slot),
                                          context.optional_buffer(gathered_), context.compute);
  if (scores_) {
    check(weighed, "scores without weights have no gradients");
    const Tensor d_scores = one_row_backward(context, weight_, context.buffer(weights_), hidden,
                                             gradient_scale, head_gradients);
    context.ops.linear_backward_input(d_scores, context.param(weight_), context.buffer(d_norm_),
                                      context.compute);
    norm_.backward(context, slot, tensor.enter_backward(context.buffer(d_norm_), context.compute),
                   d_residual, Write::kOverwrite, head_gradients);
    return;
  }
  const ConstTensor weight = context.param(weight_);
  const GradTarget& weight_target = tied_ ? embedding_gradients : head_gradients;
  const bool trains_weight = weight_target.wants(weight_);
  const Tensor d_weight = trains_weight ? weight_target.param(weight_) : Tensor{};
  const Tensor d_norm = context.buffer(d_norm_);
  const bool unit_rows = squares_.index >= 0;
  Tensor d_values;
  if (weighed && has_values()) {
    d_values = one_row_backward(context, value_weight_, context.buffer(value_weights_), hidden,
                                gradient_scale, head_gradients);
  }
  measure_rows(context);
  const Rows rows = rows_of(context, hidden, targets, {});
  const Tensor d_hidden = rows.moved.empty() ? d_norm : rows.moved;
  ConstTensor weights;
  if (weighed) weights = weights_of(context, targets);
  for_each_chunk(context, rows.count, [&](const Chunk& chunk) {
    const auto [begin, end, told] = chunk;
    const Tensor logits = context.buffer(logits_).rows(0, chunk.rows());
    const ConstTensor chunk_targets = rows.targets.flat(begin, end);
    const Tensor losses = rows.losses.flat(begin, end);
    const LogitGradient gradient{
        .scale = gradient_scale,
        .cap = logit_cap_,
        .weights = weighed ? static_cast<const float*>(weights.flat(begin, end).data()) : nullptr};
    if (chunk.rows() > 0) compute_logits(context, rows.hidden.rows(begin, end), logits);
    if (tensor.size() > 1) {
      combine_losses(context, chunk, logits, chunk_targets, losses);
      if (chunk.rows() == 0) return;
      context.ops.cross_entropy_gradient(logits, chunk_targets, slice_,
                                         context.buffer(logsumexp_).flat(0, chunk.rows()), gradient,
                                         context.compute);
    } else {
      context.ops.cross_entropy_forward_backward(logits, chunk_targets, slice_.vocab_size, gradient,
                                                 losses, context.compute);
    }
    if (unit_rows) {
      context.ops.divide_columns(logits, context.buffer(squares_), context.compute);
    }
    if (trains_weight) {
      context.ops.linear_backward_weight(logits, rows.hidden.rows(begin, end), d_weight,
                                         begin == 0 ? weight_target.write : Write::kAdd,
                                         context.compute);
    }
    // In the place of what was read, where that has been moved.
    context.ops.linear_backward_input(logits, weight, d_hidden.rows(begin, end), context.compute);
  });
  put_back(context, rows.losses, targets, context.buffer(losses_));
  put_back(context, d_hidden, targets, d_norm);
  if (weighed && has_values()) {
    add_input_gradient(context, d_values, d_norm);
  }
  if (unit_rows && trains_weight) {
    context.ops.project_rows(weight, context.buffer(squares_), d_weight, context.compute);
  }
  context.ops.sum(context.buffer(losses_), loss_sum(context), loss_write, context.compute);
  norm_.backward(context, slot, tensor.enter_backward(d_norm, context.compute), d_residual,
                 Write::kOverwrite, head_gradients);
}

ConstTensor LossHead::weights_of(const LayerContext& context, const HeadTargets& targets) const {
  const Tensor weights = context.buffer(weights_);
  if (targets.rows_M.empty()) return weights;
  const std::int64_t count = targets.rows_M.numel();
  const Tensor moved = context.buffer(moved_weights_).flat(0, count);
  context.ops.gather_rows(weights.view({tokens_, 1}), targets.rows_M, 1, {}, moved.view({count, 1}),
                          context.compute);
  return moved;
}

Tensor LossHead::one_row_backward(const LayerContext& context,
                                  ParamRef weight,
                                  ConstTensor weights_N,
                                  ConstTensor hidden,
                                  float gradient_scale,
                                  const GradTarget& head_gradients) const {
  const bool computes = context.tensor_parallel.rank() == 0;
  const Tensor d_row = context.buffer(d_one_row_);
  context.ops.add_scaled(weights_N, computes ? gradient_scale : 0.0F, d_row, Write::kOverwrite,
                         context.compute);
  if (head_gradients.wants(weight)) {
    context.ops.linear_backward_weight(d_row, hidden, head_gradients.param(weight),
                                       head_gradients.write, context.compute);
  }
  return d_row;
}

void LossHead::add_input_gradient(const LayerContext& context,
                                  ConstTensor d_values,
                                  Tensor d_norm) const {
  for_each_chunk(context, tokens_, [&](const Chunk& chunk) {
    const auto [begin, end, told] = chunk;
    const Tensor more = context.buffer(d_value_input_).rows(0, end - begin);
    const Tensor to = d_norm.rows(begin, end);
    context.ops.linear_backward_input(d_values.rows(begin, end), context.param(value_weight_), more,
                                      context.compute);
    context.ops.add(to, more, to, context.compute);
  });
}

}  // namespace dstrain
