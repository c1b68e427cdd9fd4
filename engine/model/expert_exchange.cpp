#include "engine/model/expert_exchange.h"

#include <algorithm>
#include <numeric>

#include "engine/model/expert_capacity.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

std::int64_t sum_of(std::span<const std::int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

std::vector<std::int64_t> times(std::span<const std::int64_t> counts, std::int64_t width) {
  std::vector<std::int64_t> elements;
  for (const std::int64_t count : counts) {
    elements.push_back(count * width);
  }
  return elements;
}

/// Fills in what follows from how many rows are received of whom for which expert.
void find_order(RoutedRows& routed, std::int64_t ranks, std::int64_t experts) {
  routed.computed.assign(static_cast<std::size_t>(experts), 0);
  routed.from_ranks.assign(static_cast<std::size_t>(ranks), 0);
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    for (std::int64_t expert = 0; expert < experts; ++expert) {
      const std::int32_t rows = routed.received[static_cast<std::size_t>(rank * experts + expert)];
      routed.computed[static_cast<std::size_t>(expert)] += rows;
      routed.from_ranks[static_cast<std::size_t>(rank)] += rows;
    }
  }
  std::vector<std::int32_t> next(static_cast<std::size_t>(experts));
  std::exclusive_scan(routed.computed.begin(), routed.computed.end(), next.begin(), 0);
  const auto rows = static_cast<std::size_t>(sum_of(routed.from_ranks));
  routed.order.resize(rows);
  routed.places.resize(rows);
  routed.experts.resize(rows);
  std::int32_t at = 0;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    for (std::int64_t expert = 0; expert < experts; ++expert) {
      std::int32_t& place = next[static_cast<std::size_t>(expert)];
      std::int32_t left = routed.received[static_cast<std::size_t>(rank * experts + expert)];
      for (; left > 0; --left, ++at, ++place) {
        routed.order[static_cast<std::size_t>(place)] = at;
        routed.places[static_cast<std::size_t>(at)] = place;
        routed.experts[static_cast<std::size_t>(at)] = static_cast<std::int32_t>(expert);
      }
    }
  }
}

}  // namespace

std::int64_t ExpertExchange::most_rows(const LayerShape& shape) {
  const ExpertsSpec& spec = shape.layer.feed_forward.experts.value();
  return shape.experts.ranks * most_rows_of(shape, spec.count / shape.experts.ranks);
}

ExpertExchange ExpertExchange::declare(const LayerShape& shape,
                                       const std::string& name,
                                       Blueprint& blueprint) {
  const ExpertsSpec& spec = shape.layer.feed_forward.experts.value();
  ExpertExchange exchange;
  exchange.ranks_ = shape.experts.ranks;
  exchange.own_ = spec.count / shape.experts.ranks;
  exchange.tokens_ = shape.mlp_tile();
  exchange.rows_ = most_rows_of(shape, spec.count);
  exchange.width_ = shape.model.hidden_size;
  exchange.overlap_ = shape.experts.overlap;
  exchange.compute_ = shape.compute;
  const std::int64_t most = most_rows(shape);
  const auto scratch = [&](const char* what, const Shape& of, DType dtype) {
    return blueprint.add_buffer({std::string("experts/") + what, of, dtype, Lifetime::kScratch});
  };
  const auto keep = [&](const char* what) {
    return shape.has_mlp_tiles() ? scratch(what, {most}, DType::kI32)
                                 : shape.add_activation(blueprint, name, what, {most}, DType::kI32,
                                                        Origin::kProduct, LayerKind::kMlp);
  };
  exchange.counts_ = scratch("counts_received", {spec.count}, DType::kI32);
  exchange.order_ = keep("order");
  exchange.places_ = keep("places_received");
  exchange.experts_ = keep("experts_received");
  exchange.here_ = scratch("rows_here", {exchange.rows_, exchange.width_}, shape.compute);
  exchange.received_ = scratch("rows_received", {most, exchange.width_}, shape.compute);
  return exchange;
}

void ExpertExchange::meet(const LayerContext& context,
                          ConstTensor rows_E,
                          RoutedRows& routed) const {
  const auto ranks = static_cast<std::size_t>(ranks_);
  const Tensor received = context.buffer(counts_);
  const std::vector<std::int64_t> parts(ranks, own_);
  context.expert_ranks->all_to_all(rows_E, parts, received, parts, Purpose::kExperts,
                                   context.compute);
  routed.chosen.resize(static_cast<std::size_t>(rows_E.numel()));
  routed.received.resize(routed.chosen.size());
  context.device.copy_to_host(rows_E, routed.chosen.data(), context.compute);
  context.device.copy_to_host(received, routed.received.data(), context.compute);
  context.compute.synchronize();
  routed.to_ranks.assign(ranks, 0);
  for (std::size_t expert = 0; expert < routed.chosen.size(); ++expert) {
    routed.to_ranks[expert / static_cast<std::size_t>(own_)] += routed.chosen[expert];
  }
  find_order(routed, ranks_, own_);
}

void ExpertExchange::set_order(const LayerContext& context,
                               int slot,
                               const RoutedRows& routed) const {
  const auto bring = [&](const std::vector<std::int32_t>& from, BufferRef to) {
    if (from.empty()) return;
    context.device.copy_from_host(
        from.data(), context.buffer(to, slot).flat(0, static_cast<std::int64_t>(from.size())),
        context.compute);
  };
  bring(routed.order, order_);
  bring(routed.places, places_);
  bring(routed.experts, experts_);
}

void ExpertExchange::pass(const LayerContext& context,
                          ConstTensor in,
                          std::span<const std::int64_t> sent,
                          Tensor out,
                          std::span<const std::int64_t> received) const {
  if (context.expert_passing != nullptr) {
    context.expert_passing->wait(context.compute.record());
  }
  context.expert_ranks->all_to_all(
      in, sent, out, received, Purpose::kExperts,
      context.expert_passing != nullptr ? *context.expert_passing : context.compute);
}

void ExpertExchange::arrive(const LayerContext& context) const {
  if (context.expert_passing != nullptr) {
    context.compute.wait(context.expert_passing->record());
  }
}

Tensor ExpertExchange::give(const LayerContext& context, const RoutedRows& routed) const {
  const Tensor here = rows_here(context, sum_of(routed.to_ranks));
  const Tensor received = context.buffer(received_).rows(0, sum_of(routed.from_ranks));
  pass(context, here, times(routed.to_ranks, width_), received, times(routed.from_ranks, width_));
  return received;
}

void ExpertExchange::give_back(const LayerContext& context,
                               int slot,
                               const RoutedRows& routed,
                               ConstTensor computed) const {
  const Tensor here = rows_here(context, sum_of(routed.to_ranks));
  const std::int64_t rows = sum_of(routed.from_ranks);
  const Tensor received = context.buffer(received_).rows(0, rows);
  context.ops.sum_rows(computed, context.buffer(places_, slot).flat(0, rows).view({rows, 1}), {},
                       received, Write::kOverwrite, context.compute);
  pass(context, received, times(routed.from_ranks, width_), here, times(routed.to_ranks, width_));
}

void ExpertExchange::give_numbers(const LayerContext& context,
                                  const RoutedRows& routed,
                                  ConstTensor here,
                                  Tensor received) const {
  pass(context, here, routed.to_ranks, received, routed.from_ranks);
}

void ExpertExchange::give_numbers_back(const LayerContext& context,
                                       const RoutedRows& routed,
                                       ConstTensor received,
                                       Tensor here) const {
  pass(context, received, routed.from_ranks, here, routed.to_ranks);
}

void ExpertExchange::add_traffic(std::int64_t tokens,
                                 bool beside_shared,
                                 bool computes_again,
                                 ExpertTraffic& traffic) const {
  const std::int64_t of_tokens = rows_ * tokens / tokens_;
  const auto rows = [&](bool is_beside) {
    return ExpertTransfer{
        .elements = of_tokens * width_, .dtype = compute_, .is_beside = overlap_ && is_beside};
  };
  const auto numbers = [&](bool is_beside) {
    return ExpertTransfer{
        .elements = of_tokens, .dtype = DType::kF32, .is_beside = overlap_ && is_beside};
  };
  const auto add = [](std::vector<ExpertTransfer>& to, std::initializer_list<ExpertTransfer> what) {
    to.insert(to.end(), what);
  };
  const ExpertTransfer counts{.elements = ranks_ * own_, .dtype = DType::kI32};
  add(traffic.forward, {counts, rows(beside_shared), rows(false)});
  if (computes_again) {
    add(traffic.backward, {rows(false)});
  } else {
    add(traffic.expand, {rows(beside_shared)});
  }
  add(traffic.backward, {numbers(beside_shared), rows(beside_shared), numbers(true), rows(true)});
}

}  // namespace dstrain
