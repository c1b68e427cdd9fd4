#include "engine/model/ring_attention.h"

#include <algorithm>

#include "kernels/block_copy.h"

namespace dstrain {

RingAttention RingAttention::declare(const LayerShape& shape,
                                     const AttentionShape& attending,
                                     const std::string& name,
                                     Blueprint& blueprint) {
  RingAttention ring;
  ring.context_ = shape.context;
  ring.sequence_ = shape.sequence;
  ring.window_ = shape.layer.attention.window;
  ring.chunk_ = attending;
  ring.chunk_.sequence = attending.sequence / shape.context.chunks();
  ring.steps_ = ring.find_steps();
  const AttentionShape& chunk = ring.chunk_;
  const std::int64_t rows = ring.chunk_rows();
  const std::int64_t all = rows * shape.context.chunks();
  ring.logsumexp_ =
      shape.add_activation(blueprint, name, "logsumexp",
                           {shape.context.chunks(), chunk.batch, chunk.query_heads, chunk.sequence},
                           DType::kF32, Origin::kProduct, LayerKind::kAttention);
  const auto decl = [](const std::string& what, Shape extent, DType dtype) {
    return BufferDecl{what, extent, dtype, Lifetime::kScratch, LayerKind::kAttention};
  };
  const Shape per_query{chunk.batch, chunk.query_heads, chunk.sequence};
  ring.delta_ =
      shape.add_backward_buffer(blueprint, decl("attention_delta", per_query, DType::kF32));
  if (shape.context.ring == 1) {
    return ring;
  }
  const auto scratch = [&](const std::string& what, Shape extent, DType dtype) {
    return blueprint.add_buffer(decl(what, extent, dtype));
  };
  const auto d_scratch = [&](const std::string& what, Shape extent, DType dtype) {
    return shape.add_backward_buffer(blueprint, decl(what, extent, dtype));
  };
  const Shape keys{all, ring.key_width()};
  ring.own_keys_ = scratch("ring/own_keys", keys, shape.compute);
  ring.part_queries_ = scratch("ring/part_queries", {rows, ring.query_width()}, shape.compute);
  ring.part_logsumexp_ = scratch("ring/part_logsumexp", per_query, DType::kF32);
  ring.d_keys_ = d_scratch("ring/d_keys", {rows, ring.key_width()}, shape.compute);
  // Two ranks need one buffer each: nothing else arrives while a rank computes with the other's
  // keys.
  const std::size_t turns = std::min<std::size_t>(2, ring.steps_.size() - 1);
  for (std::size_t turn = 0; turn < turns; ++turn) {
    const std::string which = std::to_string(turn);
    ring.arriving_.push_back(scratch("ring/arriving_" + which, keys, shape.compute));
    ring.leaving_.push_back(d_scratch("ring/leaving_" + which, keys, shape.compute));
    ring.returned_.push_back(d_scratch("ring/returned_" + which, keys, shape.compute));
  }
  if (shape.compute != DType::kF32) {
    const std::int64_t widest = std::max(rows * ring.query_width(), all * ring.key_width());
    const std::int64_t width = ring.query_width() + (shape.extends_cache() ? 0 : ring.key_width());
    ring.wide_ = scratch("ring/wide", {widest}, DType::kF32);
    ring.sums_ = scratch("ring/sums", {all, width}, DType::kF32);
  }
  return ring;
}

std::vector<RingAttention::Step> RingAttention::find_steps() const {
  const int ranks = context_.ring;
  const int me = context_.ring_rank;
  std::vector<Step> steps;
  for (int step = 0; step < ranks; ++step) {
    const int source = (me - step + ranks) % ranks;
    const int target = (me + step) % ranks;
    steps.push_back({.source = source,
                     .seen = context_.chunks_seen(me, source, sequence_, window_),
                     .target = target,
                     .sent = context_.chunks_seen(target, me, sequence_, window_),
                     .parts = find_parts(source)});
  }
  return steps;
}

std::vector<std::int64_t> RingAttention::exchanges(Pass pass) const {
  std::vector<std::int64_t> sent;
  const auto add = [&](const Step& step, const Range& chunks) {
    if (step.travels()) sent.push_back(chunks.size() * chunk_rows() * key_width());
  };
  for (std::size_t step = 1; step < steps_.size(); ++step) {
    if (pass == Pass::kForward) {
      add(steps_[step], steps_[step].sent);
      continue;
    }
    if (step == 1) add(steps_[step], steps_[step].sent);
    if (step + 1 < steps_.size()) add(steps_[step + 1], steps_[step + 1].sent);
    add(steps_[step], steps_[step].seen);
  }
  return sent;
}

// The parts of a chunk with its own keys come first: each of its queries sees at least itself
// there, so that what later parts are merged with is never empty.
std::vector<RingAttention::Part> RingAttention::find_parts(int source) const {
  std::vector<Part> parts;
  const bool is_own = source == context_.ring_rank;
  const auto add = [&](int query, int key) {
    if (!sees(queries_at(query), context_.ring_chunk(source, key, sequence_), window_)) return;
    const bool is_known =
        std::any_of(parts.begin(), parts.end(), [&](const Part& part) { return part.key == key; });
    parts.push_back(
        {.query = query, .key = key, .is_own = is_own && query == key, .begins_keys = !is_known});
  };
  for (int chunk = 0; is_own && chunk < context_.chunks(); ++chunk) {
    add(chunk, chunk);
  }
  for (int query = 0; query < context_.chunks(); ++query) {
    for (int key = 0; key < context_.chunks(); ++key) {
      if (!is_own || query != key) add(query, key);
    }
  }
  return parts;
}

AttentionOperands RingAttention::operands(const Scores& scores,
                                          int source,
                                          const Part& part,
                                          ConstTensor packed,
                                          ConstTensor keys) const {
  AttentionOperands in{.shape = chunk_, .reach = scores.reach, .dropout = scores.dropout};
  in.reach.first_query = queries_at(part.query).begin;
  in.reach.first_key = context_.ring_chunk(source, part.key, sequence_).begin;
  if (const ConstTensor& positions = scores.reach.document_positions; !positions.empty()) {
    in.reach.document_positions =
        positions.flat(part.query * chunk_rows(), (part.query + 1) * chunk_rows());
  }
  const std::int64_t first = keys.dim(1) - key_width();  // behind queries, or alone
  in.q = {chunk_of(packed, part.query), 0, query_width()};
  in.k = {chunk_of(keys, part.key), first, key_width() / 2};
  in.v = {chunk_of(keys, part.key), first + key_width() / 2, key_width() / 2};
  return in;
}

void RingAttention::pack_own_keys(const LayerContext& context, ConstTensor packed) const {
  const std::int64_t width = packed.dim(1);
  context.ops.copy_blocks({.counts = {1, 1, packed.dim(0)},
                           .run = key_width(),
                           .from = {query_width(), {0, 0, width}},
                           .to = {0, {0, 0, key_width()}}},
                          packed, context.buffer(own_keys_), Write::kOverwrite, context.compute);
}

Event RingAttention::exchange(const LayerContext& context,
                              const Message& sent,
                              const Message& received) const {
  std::vector<P2p> messages;
  const auto add = [&](P2p::Kind kind, const Message& message) {
    if (message.chunks.size() > 0) {
      messages.push_back({.kind = kind,
                          .peer = message.peer,
                          .tensor = chunks_of(context.buffer(message.keys), message.chunks)});
    }
  };
  add(P2p::Kind::kSend, sent);
  add(P2p::Kind::kReceive, received);
  if (messages.empty()) {
    return {};
  }
  Stream& passing = *context.context_groups.passing;
  passing.wait(context.compute.record());
  context.context_groups.ring->exchange(messages, Purpose::kActivation, passing);
  return passing.record();
}

Event RingAttention::pass_keys(const LayerContext& context, std::size_t step) const {
  if (step >= steps_.size()) {
    return {};
  }
  const Step& of = steps_[step];
  return exchange(context, {.peer = of.target, .keys = own_keys_, .chunks = of.sent},
                  {.peer = of.source, .keys = in_turn(arriving_, step), .chunks = of.seen});
}

Event RingAttention::pass_gradients(const LayerContext& context, std::size_t step) const {
  const Step& of = steps_[step];
  return exchange(context, {.peer = of.source, .keys = in_turn(leaving_, step), .chunks = of.seen},
                  {.peer = of.target, .keys = in_turn(returned_, step), .chunks = of.sent});
}

void RingAttention::forward(const LayerContext& context,
                            int slot,
                            const Scores& scores,
                            ConstTensor packed,
                            Tensor heads) const {
  const Tensor sums = sum_of_heads(context, heads);
  const auto compute = [&](std::size_t step, ConstTensor keys) {
    for (const Part& part : steps_[step].parts) {
      add_part(context, slot, operands(scores, steps_[step].source, part, packed, keys), part,
               heads, sums);
    }
  };
  if (context_.ring > 1) pack_own_keys(context, packed);
  Event arrived = pass_keys(context, 1);
  compute(0, packed);
  for (std::size_t step = 1; step < steps_.size(); ++step) {
    const Event next = pass_keys(context, step + 1);
    context.compute.wait(arrived);
    compute(step, context.buffer(in_turn(arriving_, step)));
    arrived = next;
  }
  if (!scores.sinks_H.empty()) {
    context.ops.add_sinks(all_chunks(), scores.sinks_H, sums, context.buffer(logsumexp_, slot),
                          context.compute);
  }
  if (sums.data() != heads.data()) {
    context.ops.cast(sums, heads, context.compute);
  }
}

/// Where parts of heads are added up: the heads themselves, or, where these are not f32, others
/// that are.
Tensor RingAttention::sum_of_heads(const LayerContext& context, Tensor heads) const {
  return sums_.index < 0 ? heads : context.buffer(sums_).flat(0, heads.numel()).view(heads.shape());
}

/// Computes a part's results, and merges them with those of the parts before it.
void RingAttention::add_part(const LayerContext& context,
                             int slot,
                             const AttentionOperands& in,
                             const Part& of,
                             Tensor heads,
                             Tensor sums) const {
  const Tensor of_chunk = chunk_of(heads, of.query);
  const Tensor logsumexp = context.buffer(logsumexp_, slot).rows(of.query, of.query + 1);
  const Tensor part = of.is_own ? of_chunk : context.buffer(part_queries_);
  const Tensor part_logsumexp = of.is_own ? logsumexp : context.buffer(part_logsumexp_);
  context.ops.attention_forward({.in = in, .out = part, .logsumexp_BHT = part_logsumexp},
                                context.compute);
  if (sums.data() == heads.data()) {
    if (!of.is_own) {
      context.ops.merge_attention(chunk_, part, part_logsumexp, of_chunk, logsumexp,
                                  context.compute);
    }
    return;
  }
  const Tensor sum = chunk_of(sums, of.query);
  const Tensor wide = of.is_own ? sum : wide_view(context, part);
  context.ops.cast(part, wide, context.compute);
  if (!of.is_own) {
    context.ops.merge_attention(chunk_, wide, part_logsumexp, sum, logsumexp, context.compute);
  }
}

void RingAttention::backward(const LayerContext& context,
                             int slot,
                             const Scores& scores,
                             ConstTensor packed,
                             ConstTensor heads,
                             ConstTensor d_heads,
                             Tensor d_packed,
                             const SinkGradient& sinks) const {
  if (!scores.sinks_H.empty()) {
    context.ops.sinks_backward(all_chunks(), scores.sinks_H, heads,
                               context.buffer(logsumexp_, slot), d_heads, sinks.d_sinks_H,
                               sinks.write, context.compute);
  }
  const bool is_wide = sums_.index >= 0;
  const Tensor sums = is_wide ? context.buffer(sums_) : d_packed;
  const auto compute = [&](std::size_t step, ConstTensor keys) {
    for (const Part& part : steps_[step].parts) {
      AttentionBackward back{
          .in = operands(scores, steps_[step].source, part, packed, keys),
          .out = chunk_of(heads, part.query),
          .logsumexp_BHT = context.buffer(logsumexp_, slot).rows(part.query, part.query + 1),
          .dout = chunk_of(d_heads, part.query),
          .delta_BHT = context.buffer(delta_)};
      if (part.is_own && !is_wide) {  // straight to where later parts are added
        const PackedColumns<Tensor> own(chunk_, chunk_of(d_packed, part.query));
        back.dq = own.q;
        back.dk = own.k;
        back.dv = own.v;
        context.ops.attention_backward(back, context.compute);
        continue;
      }
      const Tensor d_queries = context.buffer(part_queries_);
      const Tensor d_keys = context.buffer(d_keys_);
      back.dq = d_queries;
      back.dk = {d_keys, 0, key_width() / 2};
      back.dv = {d_keys, key_width() / 2, key_width() / 2};
      context.ops.attention_backward(back, context.compute);
      add_columns(context, d_queries, chunk_of(sums, part.query), 0,
                  part.is_own ? Write::kOverwrite : Write::kAdd);
      const Write write = part.begins_keys ? Write::kOverwrite : Write::kAdd;
      if (step == 0) {
        add_columns(context, d_keys, chunk_of(sums, part.key), query_width(), write);
      } else {
        context.ops.add_scaled(d_keys, 1.0F,
                               chunk_of(context.buffer(in_turn(leaving_, step)), part.key), write,
                               context.compute);
      }
    }
  };
  const auto take_back = [&](std::size_t step, const Event& returned) {
    const Range sent = steps_[step].sent;
    context.compute.wait(returned);
    if (sent.size() > 0) {
      add_columns(context, chunks_of(context.buffer(in_turn(returned_, step)), sent),
                  chunks_of(sums, sent), query_width(), Write::kAdd);
    }
  };
  if (context_.ring > 1) pack_own_keys(context, packed);
  Event arrived = pass_keys(context, 1);
  compute(0, packed);
  Event returned;
  for (std::size_t step = 1; step < steps_.size(); ++step) {
    const Event next = pass_keys(context, step + 1);
    context.compute.wait(arrived);
    compute(step, context.buffer(in_turn(arriving_, step)));
    if (step > 1) take_back(step - 1, returned);
    returned = pass_gradients(context, step);
    arrived = next;
  }
  if (steps_.size() > 1) take_back(steps_.size() - 1, returned);
  if (is_wide) {
    context.ops.cast(sums, d_packed, context.compute);
  }
}

/// Adds rows, or puts them, into columns of `sums`, which are f32 where the rows may not be.
void RingAttention::add_columns(const LayerContext& context,
                                ConstTensor rows,
                                Tensor sums,
                                std::int64_t first,
                                Write write) const {
  ConstTensor added = rows;
  if (rows.dtype() != sums.dtype()) {
    const Tensor wide = wide_view(context, rows);
    context.ops.cast(rows, wide, context.compute);
    added = wide;
  }
  const std::int64_t width = rows.dim(1);
  context.ops.copy_blocks({.counts = {1, 1, rows.dim(0)},
                           .run = width,
                           .from = {0, {0, 0, width}},
                           .to = {first, {0, 0, sums.dim(1)}}},
                          added, sums, write, context.compute);
}

Tensor RingAttention::wide_view(const LayerContext& context, ConstTensor of) const {
  return context.buffer(wide_).flat(0, of.numel()).view(of.shape());
}

}  // namespace dstrain
