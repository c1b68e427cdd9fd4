#include "engine/model/experts.h"

#include <numeric>
#include <string_view>
#include <unordered_map>

#include "engine/model/expert_capacity.h"
#include "engine/runtime/expert_tally.h"

namespace dstrain {
namespace {

LayerShape shape_of_shared(LayerShape shape) {
  FeedForwardSpec& spec = shape.layer.feed_forward;
  spec.width = spec.experts->shared_width;
  spec.experts.reset();
  return shape;
}

std::int64_t sum_of(std::span<const std::int32_t> rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

}  // namespace

Experts Experts::declare(const LayerShape& shape, const std::string& name, Blueprint& blueprint) {
  const FeedForwardSpec& spec = shape.layer.feed_forward;
  Experts layer;
  layer.spec_ = *spec.experts;
  layer.block_ = shape.block;
  layer.batch_ = shape.batch;
  layer.capacity_ = expert_capacity(shape);
  layer.tokens_ = shape.tokens();
  layer.tile_ = shape.mlp_tile();
  layer.in_tiles_ = shape.has_mlp_tiles();
  check(layer.capacity_ == 0 || !layer.in_tiles_, "experts with a capacity in tiles of {} tokens",
        layer.tile_);
  check(layer.capacity_ == 0 || (shape.context.ranks() == 1 && shape.tensor.streams == 1),
        "experts of {} tokens of sequences that {} ranks share", layer.capacity_,
        shape.context.ranks() * shape.tensor.streams);
  layer.activation_ = spec.activation;
  layer.limit_ = spec.limit;
  layer.gated_ = spec.gated;
  layer.adds_bias_ = shape.tensor.rank == 0;
  const ExpertShape& ranks = shape.experts;
  layer.own_ = layer.spec_.count / ranks.ranks;
  layer.router_ = ExpertRouter::declare(shape, name, blueprint);
  if (ranks.apart()) {
    layer.unit_ =
        blueprint.add_unit_beside(name.substr(0, name.rfind('.')) + ".experts", Axis::kExpertData);
  }
  if (ranks.ranks > 1) {
    layer.exchange_ = ExpertExchange::declare(shape, name + ".experts", blueprint);
  }
  layer.declare_matrices(shape, name + ".experts.", layer.own_ * ranks.rank, blueprint);

  const std::int64_t tokens = layer.tile_;
  const std::int64_t per_token = layer.spec_.per_token;
  const std::int64_t experts = layer.spec_.count;
  const std::int64_t chosen = tokens * per_token;
  const std::int64_t rows =
      layer.exchange_ ? ExpertExchange::most_rows(shape) : most_rows_of(shape, experts);
  const std::int64_t width = layer.down_.shape[2];
  const auto keep = [&](const char* what, Shape of, DType dtype, Origin origin) {
    return layer.in_tiles_ ? blueprint.add_buffer({std::string("experts/") + what, of, dtype,
                                                   Lifetime::kScratch, LayerKind::kMlp})
                           : shape.add_activation(blueprint, name + ".experts", what, of, dtype,
                                                  origin, LayerKind::kMlp);
  };
  layer.num_rows_ = keep("num_rows", {experts}, DType::kI32, Origin::kProduct);
  layer.slots_ = keep("slots", {chosen}, DType::kI32, Origin::kProduct);
  layer.places_ = keep("places", {tokens, per_token}, DType::kI32, Origin::kProduct);
  layer.pre_ = keep("pre", {rows, layer.up_.shape[1]}, shape.compute, Origin::kProduct);
  layer.hidden_ = keep("hidden", {rows, width}, shape.compute, Origin::kRowwise);
  const auto d_scratch = [&](const char* what, Shape of, DType dtype) {
    return shape.add_backward_buffer(
        blueprint, {std::string("experts/") + what, of, dtype, Lifetime::kScratch});
  };
  layer.rows_ = blueprint.add_buffer(
      {"experts/rows", {rows, shape.model.hidden_size}, shape.compute, Lifetime::kScratch});
  if (layer.in_tiles_) {
    layer.counts_ = blueprint.add_buffer(
        {"experts/counts_of_tile", {1, experts}, DType::kI32, Lifetime::kScratch});
  }
  if (layer.exchange_) {
    layer.inputs_ =
        keep("inputs", {rows, shape.model.hidden_size}, shape.compute, Origin::kProduct);
    layer.weights_received_ = d_scratch("weights_received", {rows}, DType::kF32);
    layer.d_weights_received_ = d_scratch("d_weights_received", {rows}, DType::kF32);
    layer.weights_here_ = d_scratch("weights_here", {most_rows_of(shape, experts)}, DType::kF32);
  }
  layer.d_hidden_ = d_scratch("d_hidden", {rows, width}, shape.compute);
  layer.d_pre_ = d_scratch("d_pre", {rows, layer.up_.shape[1]}, shape.compute);
  if (layer.spec_.shared_width > 0) {
    layer.shared_ = Mlp::declare(shape_of_shared(shape), name + ".shared", blueprint);
  }
  if (layer.shared_ || layer.in_tiles_) {
    layer.d_beside_ =
        d_scratch("d_beside", {layer.tokens_, shape.model.hidden_size}, shape.compute);
  }
  return layer;
}

void Experts::declare_matrices(const LayerShape& shape,
                               const std::string& name,
                               std::int64_t first,
                               Blueprint& blueprint) {
  std::unordered_map<std::string_view, const TensorDecl*> tensors;
  for (const TensorDecl& tensor : shape.tensors) {
    tensors.emplace(tensor.name, &tensor);
  }
  const auto add = [&](Matrices& matrices, const std::vector<std::string>& parts,
                       const std::string& what) {
    for (std::int64_t expert = first; expert < first + own_; ++expert) {
      for (const std::string& part : parts) {
        const auto found = tensors.find(name + std::to_string(expert) + "." + part + what);
        if (found == tensors.end()) return;  // no biases
        ParamDecl declared = shape.param(*found->second);
        if (shape.tensor.streams > 1) {
          declared.share = {};  // the unit's ranks have other tokens, those of a tensor group too
        }
        const ParamRef ref =
            unit_ < 0 ? blueprint.add_param(declared) : blueprint.add_param(unit_, declared);
        if (what == ".bias") {
          matrices.bias = matrices.bias.index < 0 ? ref : matrices.bias;
          continue;
        }
        const Shape& local = declared.local_shape();
        matrices.weight = matrices.count == 0 ? ref : matrices.weight;
        matrices.shape = {own_, local[0] * static_cast<std::int64_t>(parts.size()), local[1]};
        ++matrices.count;
      }
    }
  };
  const std::vector<std::string> inner =
      gated_ ? std::vector<std::string>{"gate", "up"} : std::vector<std::string>{"up"};
  for (const char* const what : {".weight", ".bias"}) {
    add(up_, inner, what);
    add(down_, {"down"}, what);
  }
}

// The shared feed-forward computes while rows of the first tile are on their way.
void Experts::forward(const LayerContext& context, int slot, ConstTensor x_NC, Tensor y_NC) const {
  router_.forward(context, slot, x_NC);
  for_each_tile(slot, x_NC.dim(0), [&](const Tile& tile) {
    order(context, tile);
    meet(context, tile);
    const Source from = source(context, tile, x_NC);
    if (shared_ && tile.index == 0) {
      shared_->forward(context, slot, x_NC, y_NC);
    }
    expand_rows(context, tile, from);
    const RoutedRows& routed = rows_of(context, tile);
    const std::int64_t rows = sum_of(routed.computed);
    Tensor y = context.buffer(rows_).rows(0, rows);
    context.ops.grouped_forward(context.buffer(hidden_, slot).rows(0, rows), down_.weights(context),
                                added_biases(context), routed.computed, y, context.compute);
    if (exchange_) {
      exchange_->give_back(context, slot, routed, y);
      y = exchange_->rows_here(context, sum_of(routed.chosen));
      arrive(context);
    }
    context.ops.sum_rows(y, places(context, tile), tile.of(router_.weights(context, slot)),
                         tile.of(y_NC), shared_ ? Write::kAdd : Write::kOverwrite, context.compute);
  });
}

void Experts::expand(const LayerContext& context, int slot, ConstTensor x_NC) const {
  router_.forward(context, slot, x_NC);
  if (in_tiles_) return;
  const Tile all{slot, 0, {0, x_NC.dim(0)}};
  order(context, all);
  const Source from = source(context, all, x_NC);
  if (shared_) {
    shared_->expand(context, slot, x_NC);
  }
  expand_rows(context, all, from);
}

/// Waits until the host knows how many rows each expert has.
void Experts::meet(const LayerContext& context, const Tile& tile) const {
  RoutedRows& routed = rows_of(context, tile);
  const Tensor rows_E = context.buffer(num_rows_, tile.slot);
  if (capacity_ > 0) {  // rows are fewer than choices
    const Tensor counts = router_.counts(context, tile.slot);
    routed.wanted.resize(static_cast<std::size_t>(counts.numel()));
    context.device.copy_to_host(counts, routed.wanted.data(), context.compute);
  }
  if (exchange_) {
    exchange_->meet(context, rows_E, routed);
  } else {
    routed.chosen.resize(static_cast<std::size_t>(spec_.count));
    context.device.copy_to_host(rows_E, routed.chosen.data(), context.compute);
    context.compute.synchronize();
    routed.computed = routed.chosen;
  }
  if (capacity_ > 0) {  // the sum over sequences
    const auto experts = static_cast<std::size_t>(spec_.count);
    for (std::size_t at = experts; at < routed.wanted.size(); ++at) {
      routed.wanted[at % experts] += routed.wanted[at];
    }
    routed.wanted.resize(experts);
  }
}

void Experts::arrive(const LayerContext& context) const {
  if (exchange_) exchange_->arrive(context);
}

void Experts::expand_rows(const LayerContext& context, const Tile& tile, const Source& from) const {
  const int slot = tile.slot;
  const RoutedRows& routed = rows_of(context, tile);
  const std::int64_t rows = sum_of(routed.computed);
  if (exchange_) {
    exchange_->set_order(context, slot, routed);
  }
  const Tensor x = context.buffer(exchange_ ? inputs_ : rows_, exchange_ ? slot : 0).rows(0, rows);
  arrive(context);
  context.ops.gather_rows(from.tokens, from.slots, from.per_token, {}, x, context.compute);
  context.ops.grouped_forward(x, up_.weights(context), up_.biases(context), routed.computed,
                              context.buffer(pre_, slot).rows(0, rows), context.compute);
  activate_rows(context, slot, rows);
}

Experts::Source Experts::source(const LayerContext& context,
                                const Tile& tile,
                                ConstTensor all_NC) const {
  const RoutedRows& routed = rows_of(context, tile);
  const ConstTensor of_tokens_NC = tile.of(all_NC);
  const std::int64_t rows = sum_of(routed.chosen);
  const Tensor slots = context.buffer(slots_, tile.slot).flat(0, rows);
  if (!exchange_) {
    return {of_tokens_NC, slots, spec_.per_token};
  }
  context.ops.gather_rows(of_tokens_NC, slots, spec_.per_token, {},
                          exchange_->rows_here(context, rows), context.compute);
  return {exchange_->give(context, routed),
          exchange_->order(context, tile.slot, sum_of(routed.computed)), 1};
}

void Experts::order(const LayerContext& context, const Tile& tile) const {
  const Tensor chosen = tile.of(router_.chosen(context, tile.slot));
  Tensor counts = router_.counts(context, tile.slot);
  if (in_tiles_) {
    counts = context.buffer(counts_);
    router_.count(context, tile.slot, tile.tokens, counts);
  }
  context.ops.order_by_expert(
      {.chosen_NK = chosen,
       .counts_BE = counts,
       .capacity = capacity_,
       .rows_E = context.buffer(num_rows_, tile.slot),
       .slots_NK = context.buffer(slots_, tile.slot).flat(0, chosen.numel()),
       .places_NK = places(context, tile)},
      context.compute);
}

/// i32 [tokens of the tile, k]
Tensor Experts::places(const LayerContext& context, const Tile& tile) const {
  return context.buffer(places_, tile.slot).rows(0, tile.tokens.size());
}

RoutedRows& Experts::rows_of(const LayerContext& context, const Tile& tile) const {
  return context.expert_tally().rows(block_, tile.slot, tile.index);
}

void Experts::activate(const LayerContext& context, int slot) const {
  if (in_tiles_) return;
  activate_rows(context, slot, sum_of(rows_of(context, {slot, 0, {}}).computed));
  if (shared_) {
    shared_->activate(context, slot);
  }
}

void Experts::activate_rows(const LayerContext& context, int slot, std::int64_t rows) const {
  const Tensor pre = context.buffer(pre_, slot).rows(0, rows);
  const Tensor hidden = context.buffer(hidden_, slot).rows(0, rows);
  if (gated_) {
    context.ops.gated_activation_forward({activation_, limit_}, pre, hidden, context.compute);
  } else {
    context.ops.activation_forward(activation_, pre, hidden, context.compute);
  }
}

void Experts::backward(const LayerContext& context,
                       int slot,
                       ConstTensor dy_NC,
                       ConstTensor x_NC,
                       Tensor dx_NC,
                       const BlockGradients& gradients) const {
  Stream& compute = context.compute;
  GradTarget of_experts = unit_ < 0 ? gradients : gradients.experts;
  Tensor dx;  // of the rows of a tile
  for_each_tile(slot, x_NC.dim(0), [&](const Tile& tile) {
    if (in_tiles_) {
      order(context, tile);
      expand_rows(context, tile, source(context, tile, x_NC));
    }
    const Choices choices = choices_of(context, tile);
    const Source dy = source(context, tile, dy_NC);
    if (shared_ && tile.index == 0) {
      shared_->backward(context, slot, dy_NC, x_NC, context.buffer(d_beside_), gradients);
    }
    arrive(context);
    dx = backward_rows(context, tile, dy, choices, x_NC, of_experts);
    if (in_tiles_) {
      context.ops.sum_rows(dx, places(context, tile), {}, tile.of(context.buffer(d_beside_)),
                           shared_ ? Write::kAdd : Write::kOverwrite, compute);
    }
    tell(context, tile);
    of_experts.write = Write::kAdd;
  });

  router_.begin_backward(context, slot);
  router_.backward(context, slot, x_NC, dx_NC, gradients);
  if (!in_tiles_) {
    context.ops.sum_rows(dx, context.buffer(places_, slot), {}, dx_NC, Write::kAdd, compute);
  }
  router_.measure(context, slot);
  if (d_beside_.index >= 0) {
    context.ops.add(dx_NC, context.buffer(d_beside_), dx_NC, compute);
  }
}

Tensor Experts::backward_rows(const LayerContext& context,
                              const Tile& tile,
                              const Source& dy,
                              const Choices& choices,
                              ConstTensor x_NC,
                              const GradTarget& gradients) const {
  const int slot = tile.slot;
  const RoutedRows& routed = rows_of(context, tile);
  const ExpertRows experts = routed.computed;
  const std::int64_t num_rows = sum_of(routed.computed);
  const Tensor pre = context.buffer(pre_, slot).rows(0, num_rows);
  const Tensor hidden = context.buffer(hidden_, slot).rows(0, num_rows);
  const Tensor d_hidden = context.buffer(d_hidden_).rows(0, num_rows);
  const Tensor d_pre = context.buffer(d_pre_).rows(0, num_rows);
  const Tensor rows = context.buffer(rows_).rows(0, num_rows);
  Stream& compute = context.compute;

  context.ops.gather_rows(dy.tokens, dy.slots, dy.per_token, {}, rows, compute);
  context.ops.grouped_backward_input(rows, down_.weights(context), experts, d_hidden, compute);
  context.ops.weighted_rows_backward({.slots_M = dy.slots,
                                      .weights_NK = choices.weights,
                                      .row_MF = hidden,
                                      .d_row_MF = d_hidden,
                                      .dy_MC = rows,
                                      .bias_EC = added_biases(context),
                                      .chosen_NK = choices.chosen,
                                      .d_weights_NK = choices.d_weights},
                                     compute);
  context.ops.gather_rows(dy.tokens, dy.slots, dy.per_token, choices.weights, rows, compute);
  down_.backward(context, rows, hidden, experts, gradients);
  if (gated_) {
    context.ops.gated_activation_backward({activation_, limit_}, pre, d_hidden, d_pre, compute);
  } else {
    context.ops.activation_backward(activation_, pre, d_hidden, d_pre, compute);
  }
  if (!exchange_) {
    context.ops.gather_rows(tile.of(x_NC), dy.slots, dy.per_token, {}, rows, compute);
    up_.backward(context, d_pre, rows, experts, gradients);
  }
  context.ops.grouped_backward_input(d_pre, up_.weights(context), experts, rows, compute);
  if (!exchange_) return rows;
  give_back_weights(context, tile);
  exchange_->give_back(context, slot, routed, rows);
  up_.backward(context, d_pre, context.buffer(inputs_, slot).rows(0, num_rows), experts, gradients);
  arrive(context);
  take_weights(context, tile);
  return exchange_->rows_here(context, sum_of(routed.chosen));
}

Experts::Choices Experts::choices_of(const LayerContext& context, const Tile& tile) const {
  const int slot = tile.slot;
  const Tensor weights = tile.of(router_.weights(context, slot));
  if (!exchange_) {
    const Tensor d_weights = tile.of(router_.d_weights(context));
    if (capacity_ > 0) {
      context.ops.zero(d_weights, context.compute);  // of choices without a row
    }
    return {weights, tile.of(router_.chosen(context, slot)), d_weights};
  }
  const RoutedRows& routed = rows_of(context, tile);
  const std::int64_t chosen = sum_of(routed.chosen);
  const std::int64_t rows = sum_of(routed.computed);
  const Tensor here = context.buffer(weights_here_).flat(0, chosen);
  const Tensor received = context.buffer(weights_received_).flat(0, rows);
  context.ops.gather_rows(weights.view({weights.numel(), 1}),
                          context.buffer(slots_, slot).flat(0, chosen), 1, {},
                          here.view({chosen, 1}), context.compute);
  exchange_->give_numbers(context, routed, here, received);
  return {received.view({rows, 1}), exchange_->experts(context, slot, rows),
          context.buffer(d_weights_received_).flat(0, rows).view({rows, 1})};
}

void Experts::give_back_weights(const LayerContext& context, const Tile& tile) const {
  const RoutedRows& routed = rows_of(context, tile);
  const std::int64_t chosen = sum_of(routed.chosen);
  const Tensor here = context.buffer(weights_here_).flat(0, chosen);
  exchange_->give_numbers_back(
      context, routed, context.buffer(d_weights_received_).flat(0, sum_of(routed.computed)), here);
}

void Experts::take_weights(const LayerContext& context, const Tile& tile) const {
  const std::int64_t chosen = sum_of(rows_of(context, tile).chosen);
  const Tensor here = context.buffer(weights_here_).flat(0, chosen);
  const Tensor d_weights = tile.of(router_.d_weights(context));
  const Tensor of_slots = places(context, tile);
  context.ops.sum_rows(here.view({chosen, 1}), of_slots.view({of_slots.numel(), 1}), {},
                       d_weights.view({d_weights.numel(), 1}), Write::kOverwrite, context.compute);
}

ExpertTraffic Experts::traffic() const {
  ExpertTraffic traffic;
  if (exchange_) {
    for_each_tile(0, tokens_, [&](const Tile& tile) {
      exchange_->add_traffic(tile.tokens.size(), shared_ && tile.index == 0, in_tiles_, traffic);
    });
  }
  const std::vector<ExpertTransfer> of_router = router_.traffic();
  traffic.backward.insert(traffic.backward.end(), of_router.begin(), of_router.end());
  return traffic;
}

void Experts::tell(const LayerContext& context, const Tile& tile) const {
  const RoutedRows& routed = rows_of(context, tile);
  const std::int64_t tokens = tile.tokens.size();
  context.expert_tally().count(block_, tile.index == 0 ? batch_ : 0, tokens,
                               capacity_ == 0 ? routed.chosen : routed.wanted,
                               tokens * spec_.per_token - sum_of(routed.chosen));
}

ConstTensor Experts::added_biases(const ExecContext& context) const {
  return adds_bias_ ? down_.biases(context) : ConstTensor{};
}

ConstTensor Experts::Matrices::weights(const ExecContext& context) const {
  return context.params(weight, count, shape);
}

ConstTensor Experts::Matrices::biases(const ExecContext& context) const {
  return bias.index < 0 ? ConstTensor{} : context.params(bias, count, {shape[0], shape[1]});
}

void Experts::Matrices::backward(const ExecContext& context,
                                 ConstTensor dy,
                                 ConstTensor x,
                                 ExpertRows rows,
                                 const GradTarget& gradients) const {
  if (gradients.wants(weight)) {
    context.ops.grouped_backward_weight(dy, x, rows, gradients.params(weight, count, shape),
                                        gradients.write, context.compute);
  }
  if (bias.index >= 0 && gradients.wants(bias)) {
    context.ops.grouped_backward_bias(dy, rows, gradients.params(bias, count, {shape[0], shape[1]}),
                                      gradients.write, context.compute);
  }
}

}  // namespace dstrain
