#include "engine/model/expert_router.h"

#include <algorithm>
#include <numeric>

namespace dstrain {
namespace {

std::int64_t layers_with_experts(const Architecture& model) {
  return std::count_if(model.layers.begin(), model.layers.end(), [](const LayerSpec& layer) {
    return layer.feed_forward.experts.has_value();
  });
}

}  // namespace

ExpertRouter ExpertRouter::declare(const LayerShape& shape,
                                   const std::string& name,
                                   Blueprint& blueprint) {
  const ExpertsSpec& spec = shape.layer.feed_forward.experts.value();
  ExpertRouter router;
  router.experts_ = spec.count;
  router.rule_ = {.per_token = spec.per_token,
                  .sigmoid = spec.score == RouterScore::kSigmoid,
                  .normalised = spec.normalised,
                  .scale = spec.scale,
                  .groups = spec.groups,
                  .chosen_groups = spec.chosen_groups,
                  .group_by_two = spec.group_score == GroupScore::kTwoLargest};
  router.context_ = shape.context;
  router.divide_sequences(shape);
  if (shape.tensor.rank == 0) {  // the ranks' parts of the router's gradient are added up
    const auto layers = static_cast<float>(layers_with_experts(shape.model));
    router.balance_scale_ = spec.balance_coefficient * static_cast<float>(shape.sequence) / layers;
    router.z_scale_ = spec.z_coefficient / layers;
  }
  router.router_ = Linear::declare(shape, {name + ".router"}, blueprint);
  if (spec.balancing_bias) {
    router.balancing_bias_ =
        blueprint.add_untrained(name + "." + kBalancingBias, {spec.count}, shape.block);
  }

  const std::int64_t tokens = shape.tokens();
  const auto keep = [&](const char* what, Shape of, DType dtype) {
    return shape.add_activation(blueprint, name + ".experts", what, of, dtype, Origin::kProduct,
                                LayerKind::kMlp);
  };
  router.logits_ = keep("logits", {tokens, spec.count}, DType::kF32);
  router.logsumexp_ = keep("logsumexp", {tokens}, DType::kF32);
  router.chosen_ = keep("chosen", {tokens, spec.per_token}, DType::kI32);
  router.weights_ = keep("weights", {tokens, spec.per_token}, DType::kF32);
  const Shape counts{router.pieces_, spec.count};
  router.counts_ = keep("counts", counts, DType::kI32);
  const auto d_scratch = [&](const char* what, Shape of, DType dtype) {
    return shape.add_backward_buffer(
        blueprint, {std::string("experts/") + what, of, dtype, Lifetime::kScratch});
  };
  router.d_weights_ = d_scratch("d_weights", {tokens, spec.per_token}, DType::kF32);
  router.d_logits_ = d_scratch("d_router_logits", {tokens, spec.count}, shape.compute);
  if (spec.balance_coefficient != 0.0F || spec.z_coefficient != 0.0F) {
    router.balance_ = d_scratch("balance", counts, DType::kF32);
    router.losses_ = shape.add_backward_buffer(
        blueprint, {name + ".experts/losses", {2}, DType::kF64, Lifetime::kConstant});
  }
  if (spec.balance_coefficient != 0.0F && shape.context.ranks() * shape.tensor.streams > 1) {
    const Shape of_ranks{router.pieces_ * router.sequences_.parts, spec.count};
    router.ranks_counts_ = d_scratch("counts_of_ranks", of_ranks, DType::kI32);
  }
  return router;
}

// A rank's share of the rows, B · chunks / parts chunks, is whole pieces where a chunk has parts /
// gcd(B · chunks, parts) of them.
void ExpertRouter::divide_sequences(const LayerShape& shape) {
  const std::int64_t chunks = shape.batch * shape.context.chunks();
  const std::int64_t parts = shape.tensor.streams;
  sequences_ = {.chunks = shape.context.chunks(),
                .ranks = shape.context.ranks(),
                .pieces = parts / std::gcd(chunks, parts),
                .parts = parts,
                .part = shape.tensor.stream};
  pieces_ = chunks * sequences_.pieces / parts;
}

void ExpertRouter::forward(const LayerContext& context, int slot, ConstTensor x_NC) const {
  const Tensor logits = context.activation(logits_, slot);
  router_.forward(context, slot, x_NC, logits);
  context.ops.choose_experts({.rule = rule_,
                              .logits_NE = logits,
                              .bias_E = context.optional_buffer(balancing_bias_),
                              .logsumexp_N = context.activation(logsumexp_, slot),
                              .chosen_NK = chosen(context, slot),
                              .weights_NK = weights(context, slot)},
                             context.compute);
  context.ops.measure_experts({.rule = rule_,
                               .logits_NE = logits,
                               .logsumexp_N = context.activation(logsumexp_, slot),
                               .chosen_NK = chosen(context, slot),
                               .counts_BE = counts(context, slot),
                               .balance_BE = {},
                               .ranks_counts_BE = {},
                               .sequences = sequences_},
                              context.compute);
}

void ExpertRouter::count(const LayerContext& context,
                         int slot,
                         const Range& tokens,
                         Tensor counts) const {
  const auto of_tokens = [&](BufferRef ref) {
    return context.buffer(ref, slot).rows(tokens.begin, tokens.end);
  };
  context.ops.measure_experts(
      {.rule = rule_,
       .logits_NE = of_tokens(logits_),
       .logsumexp_N = context.buffer(logsumexp_, slot).flat(tokens.begin, tokens.end),
       .chosen_NK = of_tokens(chosen_),
       .counts_BE = counts,
       .balance_BE = {},
       .ranks_counts_BE = {},
       .sequences = {}},
      context.compute);
}

void ExpertRouter::begin_backward(const LayerContext& context, int slot) const {
  if (!sums_counts()) return;
  const Tensor of_ranks = context.buffer(ranks_counts_);
  const Tensor own = of_ranks.rows(sequences_.part * pieces_, (sequences_.part + 1) * pieces_);
  Communicator* tensor = nullptr;
  if (sequences_.parts > 1) {
    tensor = &context.tensor_parallel.group();
    context.ops.zero(of_ranks, context.compute);
  }
  context.device.copy(counts(context, slot), own, context.compute);
  for (Communicator* const group :
       {tensor, context.context_groups.ring, context.context_groups.heads}) {
    if (group != nullptr) {
      group->all_reduce(of_ranks, ReduceOp::kSum, Purpose::kExperts, context.compute);
    }
  }
}

void ExpertRouter::backward(const LayerContext& context,
                            int slot,
                            ConstTensor x_NC,
                            Tensor dx_NC,
                            const GradTarget& gradients) const {
  const Tensor d_logits = context.buffer(d_logits_);
  context.ops.choose_experts_backward({.rule = rule_,
                                       .logits_NE = context.buffer(logits_, slot),
                                       .logsumexp_N = context.buffer(logsumexp_, slot),
                                       .chosen_NK = chosen(context, slot),
                                       .weights_NK = weights(context, slot),
                                       .d_weights_NK = d_weights(context),
                                       .counts_BE = counts_of_all(context, slot),
                                       .sequences = sequences_of_all(),
                                       .balance_scale = balance_scale_ * context.token_scale,
                                       .z_scale = z_scale_ * context.token_scale,
                                       .d_logits_NE = d_logits},
                                      context.compute);
  router_.backward(context, slot, d_logits, x_NC, dx_NC, gradients);
}

void ExpertRouter::measure(const LayerContext& context, int slot) const {
  if (losses_.index < 0) return;
  const Tensor losses = context.buffer(losses_);
  const Tensor balance = context.buffer(balance_);
  const Tensor logsumexp = context.buffer(logsumexp_, slot);
  context.ops.measure_experts({.rule = rule_,
                               .logits_NE = context.buffer(logits_, slot),
                               .logsumexp_N = logsumexp,
                               .chosen_NK = chosen(context, slot),
                               .counts_BE = counts(context, slot),
                               .balance_BE = balance,
                               .ranks_counts_BE = counts_of_all(context, slot),
                               .sequences = sequences_of_all()},
                              context.compute);
  const Write write = context.losses_write;
  context.ops.sum(balance, losses.flat(0, 1), write, context.compute);
  context.ops.sum_of_squares(logsumexp, losses.flat(1, 2), write, context.compute);
}

std::vector<ExpertTransfer> ExpertRouter::traffic() const {
  std::vector<ExpertTransfer> sums;
  const auto sum_over = [&](GroupId group, int ranks) {
    if (ranks == 1) return;
    sums.push_back({.elements = pieces_ * sequences_.parts * experts_,
                    .dtype = DType::kI32,
                    .group = group,
                    .op = Op::kAllReduce});
  };
  if (sums_counts()) {
    sum_over(GroupId::kTensor, static_cast<int>(sequences_.parts));
    sum_over(GroupId::kContextRing, context_.ring);
    sum_over(GroupId::kContextHeads, context_.heads);
  }
  return sums;
}

}  // namespace dstrain
