#include "engine/model/attention.h"

#include <algorithm>
#include <vector>

#include "engine/model/dropout.h"
#include "engine/model/rope_tables.h"

namespace dstrain {
namespace {

/// Layers that rotate alike share tables. Returns "" for layers that rotate like the first one that
/// does.
std::string rotation_name(const Architecture& model, const RotarySpec& rotary) {
  std::vector<RotarySpec> before;
  for (const LayerSpec& layer : model.layers) {
    const std::optional<RotarySpec>& other = layer.attention.rotary;
    if (other == rotary) {
      break;
    }
    if (other && std::find(before.begin(), before.end(), *other) == before.end()) {
      before.push_back(*other);
    }
  }
  return before.empty() ? "" : std::to_string(before.size() + 1);
}

}  // namespace

Attention Attention::declare(const LayerShape& shape,
                             const std::string& name,
                             Blueprint& blueprint) {
  const AttentionSpec& spec = shape.layer.attention;
  const int ranks = shape.tensor.ranks;
  const std::int64_t head_dim = spec.head_dim;
  const std::int64_t query_heads = spec.heads / ranks;
  const std::int64_t kv_heads =
      spec.key_value_heads * shape.tensor.copies_of_heads(spec.key_value_heads) / ranks;
  const std::int64_t query_width = query_heads * head_dim;
  const std::int64_t kv_width = kv_heads * head_dim;
  Attention attention;
  attention.spec_ = spec;
  attention.token_positions_ = shape.token_positions;
  attention.query_positions_ = shape.query_positions;
  attention.first_sample_ = shape.first_sample;
  attention.own_ = {.batch = shape.batch,
                    .sequence = shape.own_sequence(),
                    .query_heads = query_heads,
                    .key_value_heads = kv_heads,
                    .head_dim = head_dim};
  if (spec.latent) {
    attention.latent_ = LatentProjection::declare(shape, name, blueprint);
  } else {
    attention.qkv_ =
        Linear::declare(shape, {name + ".query", name + ".key", name + ".value"}, blueprint);
    attention.norms_ = QueryKeyNorms::declare(shape, name, query_width, kv_width, blueprint);
  }
  if (spec.sinks) {
    attention.sinks_ = blueprint.add_param(shape.param(shape.tensor_named(name + ".sinks")));
  }
  attention.output_ = Linear::declare(shape, {name + ".output"}, blueprint);
  attention.exchange_ = HeadExchange::declare(shape, attention.own_, blueprint);
  const AttentionShape& dealt = attention.exchange_.dealt();
  attention.first_head_ =
      shape.tensor.rank * query_heads + shape.context.heads_rank * dealt.query_heads;
  if (!shape.extends_cache()) {
    attention.dropout_.probability = shape.dropout.attention;
    attention.dropout_.key = dropout_key(shape.seed, shape.block, DropoutSite::kAttention);
    attention.dropout_.first_head = attention.first_head_;
  }

  const auto product = [&](const char* what, Shape extent, DType dtype) {
    return shape.add_activation(blueprint, name, what, extent, dtype, Origin::kProduct,
                                LayerKind::kAttention);
  };
  const auto decl = [&](const char* what, Shape extent) {
    return BufferDecl{what, extent, shape.compute, Lifetime::kScratch, LayerKind::kAttention};
  };
  const auto d_scratch = [&](const char* what, Shape extent) {
    return shape.add_backward_buffer(blueprint, decl(what, extent));
  };
  const Shape packed{shape.tokens(), query_width + 2 * kv_width};
  const Shape heads{shape.tokens(), query_width};
  const Shape packed_dealt{shape.query_tokens(),
                           (dealt.query_heads + 2 * dealt.key_value_heads) * dealt.head_dim};
  const Shape heads_dealt{shape.query_tokens(), dealt.query_heads * dealt.head_dim};
  attention.packed_ = product("qkv", packed_dealt, shape.compute);
  attention.heads_ = product("heads", heads, shape.compute);
  attention.cache_positions_ = shape.cache_positions;
  if (shape.extends_cache()) {
    attention.cache_ =
        blueprint.add_buffer({name + "/cache",
                              {shape.cache_texts * shape.cache_positions, 2 * kv_width},
                              shape.compute,
                              Lifetime::kCache,
                              LayerKind::kAttention});
    if (spec.sinks) {
      attention.cached_logsumexp_ = blueprint.add_buffer({"cached_logsumexp",
                                                          {query_heads, shape.tokens()},
                                                          DType::kF32,
                                                          Lifetime::kScratch,
                                                          LayerKind::kAttention});
    }
  } else {
    attention.ring_ = RingAttention::declare(shape, dealt, name, blueprint);
  }
  attention.d_packed_ = d_scratch("d_qkv", packed_dealt);
  attention.d_heads_ = d_scratch("d_heads", heads);
  if (attention.exchange_.exchanges()) {
    attention.own_packed_ = blueprint.add_buffer(decl("own_qkv", packed));
    attention.attended_ = product("attended", heads_dealt, shape.compute);
    attention.d_own_packed_ = d_scratch("d_own_qkv", packed);
    attention.d_attended_ = d_scratch("d_attended", heads_dealt);
  }
  if (spec.rotary) {
    const Shape table{shape.positions(), spec.rotary->dims / 2};
    const std::string which = rotation_name(shape.model, *spec.rotary);
    attention.cosine_ =
        blueprint.add_buffer({"rope_cosine" + which, table, DType::kF32, Lifetime::kConstant});
    attention.sine_ =
        blueprint.add_buffer({"rope_sine" + which, table, DType::kF32, Lifetime::kConstant});
  }
  if (spec.falls) {
    attention.slopes_ = blueprint.add_buffer(
        {"alibi_slopes", {dealt.query_heads}, DType::kF32, Lifetime::kConstant});
  }
  return attention;
}

void Attention::prepare(const LayerContext& context) const {
  if (spec_.falls) {
    const Tensor slopes = context.buffer(slopes_);
    std::vector<float> values;
    for (std::int64_t head = 0; head < slopes.numel(); ++head) {
      values.push_back(alibi_slope(spec_.heads, first_head_ + head));
    }
    context.device.copy_from_host(values.data(), slopes, context.compute);
    context.compute.synchronize();
  }
  if (!spec_.rotary) {
    return;
  }
  const Tensor cosine = context.buffer(cosine_);
  const Tensor sine = context.buffer(sine_);
  const std::int64_t text_tokens =
      context.extension ? context.extension->texts.front().positions.end : cosine.dim(0);
  const RopeTables tables = rope_tables(*spec_.rotary, cosine.dim(0), text_tokens);
  context.device.copy_from_host(tables.cosine.data(), cosine, context.compute);
  context.device.copy_from_host(tables.sine.data(), sine, context.compute);
  context.compute.synchronize();
}

void Attention::rotate(const LayerContext& context, int slot, Tensor packed, Pass pass) const {
  if (!spec_.rotary) {
    return;
  }
  const Tensor cosine = context.buffer(cosine_);
  const Tensor sine = context.buffer(sine_);
  if (!context.extension) {
    context.ops.rope(own_, packed, cosine, sine, context.optional_buffer(token_positions_, slot),
                     pass, context.compute);
    return;
  }
  context.extension->for_each_text([&](const Extension::Text& text, Range rows) {
    AttentionShape shape = own_;
    shape.sequence = rows.size();
    const Range at = text.positions;
    context.ops.rope(shape, packed.rows(rows.begin, rows.end), cosine.rows(at.begin, at.end),
                     sine.rows(at.begin, at.end), {}, pass, context.compute);
  });
}

void Attention::attend_to_cache(const LayerContext& context,
                                int slot,
                                ConstTensor packed,
                                Tensor heads) const {
  context.extension->for_each_text([&](const Extension::Text& text, Range rows) {
    AttentionShape shape = own_;
    shape.sequence = rows.size();
    Tensor logsumexp;
    if (sinks_.index >= 0) {
      logsumexp = context.buffer(cached_logsumexp_).flat(0, shape.query_heads * shape.sequence);
    }
    const Tensor of_text = heads.rows(rows.begin, rows.end);
    const Tensor cache =
        context.buffer(cache_).rows(text.first_row, text.first_row + cache_positions_);
    context.ops.attention_cached(shape, text.positions.begin, reach_of(context, slot),
                                 packed.rows(rows.begin, rows.end), cache, of_text, logsumexp,
                                 context.compute);
    if (sinks_.index >= 0) {
      context.ops.add_sinks(shape, context.param(sinks_), of_text, logsumexp, context.compute);
    }
  });
}

void Attention::forward(const LayerContext& context,
                        int slot,
                        ConstTensor x_NC,
                        Tensor y_NC) const {
  const bool exchanges = exchange_.exchanges();
  const Tensor packed = context.activation(packed_, slot);
  const Tensor own_packed = exchanges ? context.buffer(own_packed_) : packed;
  const Tensor heads = context.activation(heads_, slot);
  if (latent_) {
    latent_->forward(context, slot, x_NC, own_packed);
  } else {
    qkv_.forward(context, slot, x_NC, own_packed);
    norms_.forward(context, slot, own_packed);
  }
  rotate(context, slot, own_packed, Pass::kForward);
  if (context.extension) {
    attend_to_cache(context, slot, packed, heads);
  } else if (exchanges) {
    const Tensor attended = context.buffer(attended_, slot);
    exchange_.to_heads(context, own_packed, packed);
    ring_.forward(context, slot, scores_of(context, slot), packed, attended);
    exchange_.to_tokens(context, attended, heads);
  } else {
    ring_.forward(context, slot, scores_of(context, slot), packed, heads);
  }
  output_.forward(context, slot, latent_ ? latent_->values_of(context, heads) : heads, y_NC);
}

AttentionReach Attention::reach_of(const LayerContext& context, int slot) const {
  return {.window = spec_.window,
          .scale = spec_.scale,
          .cap = spec_.cap,
          .document_positions = context.optional_buffer(query_positions_, slot),
          .slopes_H = context.optional_buffer(slopes_)};
}

RingAttention::Scores Attention::scores_of(const LayerContext& context, int slot) const {
  RingAttention::Scores scores{.reach = reach_of(context, slot), .dropout = dropout_};
  scores.dropout.first_sample = context.optional_buffer(first_sample_, slot);
  if (sinks_.index >= 0) {
    scores.sinks_H = of_dealt_heads(context.param(sinks_));
  }
  return scores;
}

// Where heads are exchanged, a rank has those of its heads alone: its sum with the others' is
// whole.
RingAttention::SinkGradient Attention::sink_gradient(const LayerContext& context,
                                                     const GradTarget& gradients) const {
  if (sinks_.index < 0) {
    return {};
  }
  const Tensor d_sinks = gradients.param(sinks_);
  if (exchange_.exchanges() && gradients.write == Write::kOverwrite) {
    context.ops.zero(d_sinks, context.compute);
  }
  return {.d_sinks_H = of_dealt_heads(d_sinks), .write = gradients.write};
}

void Attention::backward(const LayerContext& context,
                         int slot,
                         ConstTensor dy_NC,
                         ConstTensor x_NC,
                         Tensor dx_NC,
                         const GradTarget& gradients) const {
  const bool exchanges = exchange_.exchanges();
  const Tensor packed = context.buffer(packed_, slot);
  const Tensor heads = context.buffer(heads_, slot);
  const Tensor d_packed = context.buffer(d_packed_);
  const Tensor d_heads = context.buffer(d_heads_);
  const Tensor d_own_packed = exchanges ? context.buffer(d_own_packed_) : d_packed;
  if (latent_) {
    output_.backward(context, slot, dy_NC, latent_->values_of(context, heads),
                     latent_->d_values(context, d_heads), gradients);
    latent_->spread(context, d_heads);
  } else {
    output_.backward(context, slot, dy_NC, heads, d_heads, gradients);
  }
  const RingAttention::Scores scores = scores_of(context, slot);
  if (exchanges) {
    const Tensor d_attended = context.buffer(d_attended_);
    exchange_.to_tokens_backward(context, d_heads, d_attended);
    ring_.backward(context, slot, scores, packed, context.buffer(attended_, slot), d_attended,
                   d_packed, sink_gradient(context, gradients));
    exchange_.to_heads_backward(context, d_packed, d_own_packed);
  } else {
    ring_.backward(context, slot, scores, packed, heads, d_heads, d_packed,
                   sink_gradient(context, gradients));
  }
  rotate(context, slot, d_own_packed, Pass::kBackward);
  if (latent_) {
    latent_->backward(context, slot, x_NC, d_own_packed, dx_NC, gradients);
  } else {
    norms_.backward(context, slot, d_own_packed, gradients);
    qkv_.backward(context, slot, d_own_packed, x_NC, dx_NC, gradients);
  }
}

std::vector<ContextTransfer> Attention::context_traffic(Pass pass) const {
  std::vector<ContextTransfer> traffic;
  const auto exchange = [&](std::int64_t elements) {
    if (exchange_.exchanges()) {
      traffic.push_back(
          {.group = GroupId::kContextHeads, .op = Op::kAllToAll, .elements = elements});
    }
  };
  const bool forward = pass == Pass::kForward;
  exchange(forward ? exchange_.packed_elements() : exchange_.heads_elements());
  for (const std::int64_t sent : ring_.exchanges(pass)) {
    traffic.push_back({.group = GroupId::kContextRing, .op = Op::kExchange, .elements = sent});
  }
  exchange(forward ? exchange_.heads_elements() : exchange_.packed_elements());
  return traffic;
}

}  // namespace dstrain
