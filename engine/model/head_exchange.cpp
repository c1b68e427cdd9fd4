#include "engine/model/head_exchange.h"

#include <algorithm>

#include "engine/config/context_config.h"
#include "kernels/block_copy.h"

namespace dstrain {

HeadExchange HeadExchange::declare(const LayerShape& shape,
                                   const AttentionShape& own,
                                   Blueprint& blueprint) {
  HeadExchange exchange;
  exchange.ranks_ = shape.context.heads;
  exchange.own_tokens_ = shape.tokens();
  exchange.runs_ = shape.context.chunks() * shape.batch;
  exchange.own_ = own;
  exchange.dealt_ = own;
  if (!exchange.exchanges()) {
    return exchange;
  }
  check(can_deal_heads(exchange.ranks_, own.query_heads, own.key_value_heads),
        "{} heads over {} key/value heads among {} ranks", own.query_heads, own.key_value_heads,
        exchange.ranks_);
  exchange.dealt_.sequence = own.sequence * exchange.ranks_;
  exchange.dealt_.query_heads = own.query_heads / exchange.ranks_;
  exchange.dealt_.key_value_heads =
      std::max<std::int64_t>(1, own.key_value_heads / exchange.ranks_);
  const auto scratch = [&](const char* name) {
    return blueprint.add_buffer({name,
                                 {exchange.packed_elements()},
                                 shape.compute,
                                 Lifetime::kScratch,
                                 LayerKind::kAttention});
  };
  exchange.parts_ = scratch("heads_sent");
  exchange.received_ = scratch("heads_received");
  return exchange;
}

std::vector<HeadExchange::Columns> HeadExchange::packed_columns() const {
  const std::int64_t depth = own_.head_dim;
  const std::int64_t queries = own_.query_heads * depth;
  const std::int64_t keys = own_.key_value_heads * depth;
  const std::int64_t dealt_keys = dealt_.key_value_heads * depth;
  const std::int64_t copies = dealt_.key_value_heads * ranks_ / own_.key_value_heads;
  const auto key_columns = [&](std::int64_t first, std::int64_t in_part) {
    return Columns{.first = first, .in_part = in_part, .width = dealt_keys, .copies = copies};
  };
  return {{.first = 0, .in_part = 0, .width = heads_width()},
          key_columns(queries, heads_width()),
          key_columns(queries + keys, heads_width() + dealt_keys)};
}

void HeadExchange::put_columns(const LayerContext& context,
                               const std::vector<Columns>& columns,
                               ConstTensor rows,
                               Tensor parts) const {
  const std::int64_t width = rows.numel() / own_tokens_;
  const std::int64_t part_width = parts.numel() / (ranks_ * own_tokens_);
  for (const Columns& of : columns) {
    context.ops.copy_blocks(
        {.counts = {ranks_ / of.copies, of.copies, own_tokens_},
         .run = of.width,
         .from = {of.first, {of.width, 0, width}},
         .to = {of.in_part,
                {of.copies * own_tokens_ * part_width, own_tokens_ * part_width, part_width}}},
        rows, parts, Write::kOverwrite, context.compute);
  }
}

void HeadExchange::take_columns(const LayerContext& context,
                                const std::vector<Columns>& columns,
                                ConstTensor parts,
                                Tensor rows) const {
  const std::int64_t width = rows.numel() / own_tokens_;
  const std::int64_t part_width = parts.numel() / (ranks_ * own_tokens_);
  for (const Columns& of : columns) {
    for (std::int64_t copy = 0; copy < of.copies; ++copy) {  // in the order of the ranks
      context.ops.copy_blocks({.counts = {ranks_ / of.copies, 1, own_tokens_},
                               .run = of.width,
                               .from = {of.in_part + copy * own_tokens_ * part_width,
                                        {of.copies * own_tokens_ * part_width, 0, part_width}},
                               .to = {of.first, {of.width, 0, width}}},
                              parts, rows, copy == 0 ? Write::kOverwrite : Write::kAdd,
                              context.compute);
    }
  }
}

void HeadExchange::exchange(const LayerContext& context, ConstTensor parts, Tensor received) const {
  const std::vector<std::int64_t> each(static_cast<std::size_t>(ranks_), parts.numel() / ranks_);
  context.context_groups.heads->all_to_all(parts, each, received, each, Purpose::kActivation,
                                           context.compute);
}

// A rank has runs of neighbouring tokens; the group's run is theirs in the order of the ranks.
void HeadExchange::reorder(const LayerContext& context,
                           Order order,
                           ConstTensor from,
                           Tensor to) const {
  const std::int64_t run = from.numel() / (ranks_ * runs_);
  const BlockPlaces by_part{0, {runs_ * run, run, 0}};
  const BlockPlaces by_token{0, {run, ranks_ * run, 0}};
  const bool to_tokens = order == Order::kToTokens;
  context.ops.copy_blocks({.counts = {ranks_, runs_, 1},
                           .run = run,
                           .from = to_tokens ? by_part : by_token,
                           .to = to_tokens ? by_token : by_part},
                          from, to, Write::kOverwrite, context.compute);
}

void HeadExchange::to_heads(const LayerContext& context, ConstTensor packed, Tensor dealt) const {
  const Tensor parts = context.buffer(parts_);
  put_columns(context, packed_columns(), packed, parts);
  if (runs_ == 1) {
    exchange(context, parts, dealt);
    return;
  }
  const Tensor received = context.buffer(received_);
  exchange(context, parts, received);
  reorder(context, Order::kToTokens, received, dealt);
}

void HeadExchange::to_heads_backward(const LayerContext& context,
                                     ConstTensor d_dealt,
                                     Tensor d_packed) const {
  const Tensor received = context.buffer(received_);
  if (runs_ == 1) {
    exchange(context, d_dealt, received);
  } else {
    const Tensor parts = context.buffer(parts_);
    reorder(context, Order::kToParts, d_dealt, parts);
    exchange(context, parts, received);
  }
  take_columns(context, packed_columns(), received, d_packed);
}

void HeadExchange::to_tokens(const LayerContext& context, ConstTensor dealt, Tensor heads) const {
  const Tensor received = context.buffer(received_).flat(0, heads_elements());
  if (runs_ == 1) {
    exchange(context, dealt, received);
  } else {
    const Tensor parts = context.buffer(parts_).flat(0, heads_elements());
    reorder(context, Order::kToParts, dealt, parts);
    exchange(context, parts, received);
  }
  take_columns(context, {{.first = 0, .in_part = 0, .width = heads_width()}}, received, heads);
}

void HeadExchange::to_tokens_backward(const LayerContext& context,
                                      ConstTensor d_heads,
                                      Tensor d_dealt) const {
  const Tensor parts = context.buffer(parts_).flat(0, heads_elements());
  put_columns(context, {{.first = 0, .in_part = 0, .width = heads_width()}}, d_heads, parts);
  if (runs_ == 1) {
    exchange(context, parts, d_dealt);
    return;
  }
  const Tensor received = context.buffer(received_).flat(0, heads_elements());
  exchange(context, parts, received);
  reorder(context, Order::kToTokens, received, d_dealt);
}

}  // namespace dstrain
