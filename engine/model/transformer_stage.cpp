#include "engine/model/transformer_stage.h"

#include <algorithm>
#include <utility>

#include "engine/runtime/fp8_scales.h"
#include "kernels/core/trace_range.h"

namespace dstrain {
namespace {

/// "blocks.3", for profilers.
const std::string& name_of_unit(const LayerContext& context, int unit) {
  return context.blueprint.units()[static_cast<std::size_t>(unit)].name;
}

/// Enqueues `work`, that of a block, directly or as a graph of what it enqueued before. Ranks that
/// hold parts of a block communicate within it, which cannot be part of a graph (resolve_parallel
/// refuses the combination).
template <typename Work>
void enqueue_block(const LayerContext& context, const GraphKey& key, Work&& work) {
  const bool measures = context.fp8 != nullptr && context.fp8->measures();  // and waits for it
  if (context.graphs == nullptr || measures) {
    work();
  } else {
    context.graphs->run(key, context.compute, std::forward<Work>(work));
  }
}

/// Where the parameters of a unit are that a block may not have.
const void* frozen_of(const LayerContext& context, int unit) {
  return unit < 0 ? nullptr : context.parameters.whole(unit).data();
}

}  // namespace

TransformerStage TransformerStage::declare(const LayerShape& of_all,
                                           const RecomputeConfig& recompute,
                                           const StageExtent& extent,
                                           Blueprint& blueprint) {
  TransformerStage stage;
  stage.extent_ = extent;
  blueprint.begin_chunk();
  LayerShape shape = of_all;
  if (shape.has_token_positions()) {
    const auto positions = [&](const char* name, std::int64_t tokens) {
      return blueprint.add_buffer({name, {tokens}, DType::kI32, Lifetime::kSaved});
    };
    shape.token_positions = positions("token_positions", shape.tokens());
    stage.token_positions_ = shape.token_positions;
    if (shape.documents) {
      shape.query_positions = shape.context.heads == 1
                                  ? shape.token_positions
                                  : positions("query_positions", shape.query_tokens());
      stage.query_positions_ = shape.context.heads == 1 ? BufferRef{} : shape.query_positions;
    }
  }
  if (shape.draws()) {
    shape.first_sample = blueprint.add_buffer({"first_sample", {2}, DType::kI32, Lifetime::kSaved});
    stage.first_sample_ = shape.first_sample;
  }
  if (shape.together) {
    declare_handed_on(shape, recompute, blueprint);
  }
  if (extent.is_first()) {
    stage.declare_embedding(shape, blueprint);
  }
  LayerShape block_shape = shape;
  for (std::int64_t layer = extent.first_block; layer < extent.end_block; ++layer) {
    const std::string name = "blocks." + std::to_string(layer);
    block_shape.recompute = recompute.of_block(layer);
    block_shape.partitions_input =
        KeptInput::is_shared(shape, recompute.partitions_input_of(layer));
    block_shape.block = layer;
    block_shape.input_on_host = recompute.keeps_input_on_host(layer) && !shape.extends_cache();
    block_shape.layer = shape.model.layers.at(static_cast<std::size_t>(layer));
    block_shape.tensors = block_tensors(shape.model, block_shape.layer, name + ".");
    for (TensorDecl& adapter :
         adapter_tensors(shape.adapters.modules, shape.adapters.rank, shape.adapters.magnitudes,
                         block_shape.tensors, name + ".")) {
      block_shape.tensors.push_back(std::move(adapter));
    }
    Units& units = stage.block_units_.emplace_back(
        begin_units(name, block_shape, block_shape.tensors, blueprint));
    stage.blocks_.push_back(Block::declare(block_shape, name, blueprint));
    if (const Experts* const experts = stage.blocks_.back().experts()) {
      units.experts = experts->unit().value_or(-1);
    }
  }
  if (extent.is_last()) {
    stage.declare_head(shape, blueprint);
  }
  blueprint.end_unit();
  stage.declare_edges(shape, blueprint);
  stage.declare_walks(blueprint);
  return stage;
}

std::vector<int> TransformerStage::Units::all() const {
  std::vector<int> units{own};
  if (frozen >= 0) units.push_back(frozen);
  if (experts >= 0) units.push_back(experts);
  return units;
}

TransformerStage::Units TransformerStage::begin_units(const std::string& name,
                                                      const LayerShape& shape,
                                                      const std::vector<TensorDecl>& tensors,
                                                      Blueprint& blueprint) {
  Units units{.own = blueprint.begin_unit(name)};
  std::size_t trained = 0;
  std::size_t frozen = 0;
  for (const TensorDecl& tensor : tensors) {
    if (is_balancing_bias(tensor.name) || (tensor.of_expert && shape.experts.apart())) continue;
    (shape.trains(tensor) ? trained : frozen) += 1;
  }
  if (trained > 0 && frozen > 0) {
    units.frozen = blueprint.add_frozen_beside();
  }
  return units;
}

void TransformerStage::declare_handed_on(LayerShape& shape,
                                         const RecomputeConfig& recompute,
                                         Blueprint& blueprint) {
  const std::int64_t width = shape.model.hidden_size;
  const auto keep = [&](const char* name, std::int64_t tokens) {
    return blueprint.add_buffer(
        {name, {tokens, width}, shape.compute, Lifetime::kSaved, LayerKind::kNorm});
  };
  const NormPlacement placement = shape.model.layers.front().norm_placement;
  const bool is_normed = placement != NormPlacement::kBeforeBranch;
  shape.handed_on = keep("handed_on", is_normed ? shape.stream_tokens() : shape.tokens());
  // Blocks that compute again in full have the stream between their halves in common; and branches
  // side by side hand on what enters, which is scratch where blocks keep it apart.
  const bool apart = recompute.keeps_input_on_host(0) ||
                     KeptInput::is_shared(shape, recompute.partitions_input_of(0));
  if (recompute.granularity == RecomputeGranularity::kFull ||
      (apart && shape.model.layers.front().parallel_branches)) {
    shape.handed_on_stream = keep("handed_on_stream", shape.stream_tokens());
  }
}

void TransformerStage::declare_embedding(const LayerShape& shape, Blueprint& blueprint) {
  const bool tied_across = shape.model.tied_embeddings && !extent_.is_last();
  blueprint.begin_unit("embedding");
  embedding_ = Embedding::declare(shape, tied_across, blueprint);
  embedding_units_ = embedding_.units();
  table_unit_ = embedding_units_.front();
}

void TransformerStage::declare_head(const LayerShape& shape, Blueprint& blueprint) {
  ParamRef table = embedding_.table();
  if (shape.model.tied_embeddings && !extent_.is_first()) {
    table_unit_ = blueprint.begin_unit("embedding");
    table = blueprint.add_param(Embedding::table_copy(shape));
  }
  LayerShape head_shape = shape;
  head_shape.tensors = head_tensors(shape.model);
  head_units_ = begin_units("head", shape, head_shape.tensors, blueprint);
  head_ = LossHead::declare(head_shape, table, blueprint);
}

void TransformerStage::declare_edges(const LayerShape& shape, Blueprint& blueprint) {
  const Shape ids{shape.tokens()};
  const Shape stream{shape.stream_tokens(), shape.model.hidden_size};
  if (extent_.is_first()) {
    const Lifetime lifetime = shape.extends_cache() ? Lifetime::kScratch : Lifetime::kSaved;
    tokens_ = blueprint.add_buffer({"tokens", ids, DType::kI32, lifetime});
  }
  if (extent_.is_last() && !shape.extends_cache()) {
    targets_ = blueprint.add_buffer({"targets", ids, DType::kI32, Lifetime::kSaved});
    if (shape.skips_targets) {
      loss_rows_ =
          blueprint.add_buffer({"loss_rows", {3, shape.tokens()}, DType::kI32, Lifetime::kSaved});
    }
  }
  // The chunks of a rank share the buffers for input and output: only one of each is in use at a
  // time.
  if (extent_.stages > 1) {
    const auto edge = [&](const char* name) {
      return blueprint.add_buffer({name, stream, shape.compute, Lifetime::kScratch});
    };
    input_ = edge("edge/input");
    output_ = edge("edge/output");
    d_output_ = edge("edge/d_output");
    d_input_ = edge("edge/d_input");
  }
  std::int64_t unwanted = 0;
  for (const UnitDecl& unit : blueprint.units()) {
    for (const ParamDecl& param : unit.params) {
      const bool is_vector = !param.trained && param.shape.rank() == 1;
      unwanted = is_vector ? std::max(unwanted, param.local_shape().numel()) : unwanted;
    }
  }
  if (unwanted > 0) {
    unwanted_ = shape.add_backward_buffer(
        blueprint, {"unwanted_gradients", {unwanted}, DType::kF32, Lifetime::kScratch});
  }
  d_residual_ = shape.add_backward_buffer(blueprint,
                                          {"d_residual", stream, shape.compute,
                                           shape.together ? Lifetime::kSaved : Lifetime::kScratch});
}

void TransformerStage::declare_walks(const Blueprint& blueprint) {
  const auto visit = [&](UnitWalk& walk, Pass pass, int unit, std::vector<int> reads,
                         std::vector<int> writes) {
    std::erase_if(writes, [&](int written) {
      return !blueprint.units().at(static_cast<std::size_t>(written)).trained;
    });
    walk.push_back(
        {.pass = pass, .unit = unit, .reads = std::move(reads), .writes = std::move(writes)});
  };
  if (extent_.is_first()) {
    visit(forward_walk_, Pass::kForward, embedding_units_.front(), embedding_units_, {});
  }
  for (const Units& block : block_units_) {
    visit(forward_walk_, Pass::kForward, block.own, block.all(), {});
  }
  if (extent_.is_last()) {
    std::vector<int> logits = head_units_.all();
    visit(forward_walk_, Pass::kForward, head_units_.own, logits, {});
    if (head_.tied()) {
      logits.push_back(table_unit_);
    }
    visit(backward_walk_, Pass::kBackward, head_units_.own, logits, logits);
    losses_visit_ = {
        .pass = Pass::kForward, .unit = head_units_.own, .reads = logits, .writes = {}};
  }
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    const std::vector<int> units = block_units_[i].all();
    visit(backward_walk_, Pass::kBackward, block_units_[i].own, units, units);
  }
  if (extent_.is_first()) {
    visit(backward_walk_, Pass::kBackward, embedding_units_.front(), embedding_.units_of_backward(),
          embedding_units_);
  }
}

UnitWalk TransformerStage::evaluation_walk() const {
  UnitWalk walk = forward_walk_;
  if (extent_.is_last()) {
    walk.push_back(losses_visit_);
  }
  return walk;
}

void TransformerStage::prepare(const LayerContext& context) const {
  for (const Block& block : blocks_) {
    block.prepare(context);
  }
}

Tensor TransformerStage::tokens(const LayerContext& context, int slot) const {
  return context.activation(tokens_, slot);
}

Tensor TransformerStage::targets(const LayerContext& context, int slot) const {
  return context.buffer(targets_, slot);
}

HeadTargets TransformerStage::head_targets(const LayerContext& context,
                                           int slot,
                                           std::int64_t loss_rows) const {
  const ConstTensor all = targets(context, slot);
  const std::int64_t tokens = all.numel();
  if (loss_rows == 0 || loss_rows == tokens) return {.targets_N = all};
  const ConstTensor of = context.buffer(loss_rows_, slot);
  return {.targets_N = all,
          .rows_M = of.flat(0, loss_rows),
          .places_N = of.flat(tokens, 2 * tokens),
          .targets_M = of.flat(2 * tokens, 2 * tokens + loss_rows)};
}

Tensor TransformerStage::token_positions(const LayerContext& context, int slot) const {
  return context.optional_buffer(token_positions_, slot);
}

Tensor TransformerStage::query_positions(const LayerContext& context, int slot) const {
  return context.optional_buffer(query_positions_, slot);
}

Tensor TransformerStage::edge(const LayerContext& context, Edge edge) const {
  switch (edge) {
    case Edge::kInput:
      return context.buffer(input_);
    case Edge::kOutput:
      return context.buffer(output_);
    case Edge::kGradientOfOutput:
      return context.buffer(d_output_);
    case Edge::kGradientOfInput:
      return context.buffer(d_input_);
  }
  return {};
}

void TransformerStage::forward(const LayerContext& context,
                               VisitHooks& hooks,
                               std::span<const int> slots) const {
  auto visit = forward_walk_.begin();
  const auto within_next = [&](auto&& work) {
    const TraceRange range(name_of_unit(context, visit->unit));
    hooks.before_visit(*visit);
    for (std::size_t k = 0; k < slots.size(); ++k) {
      work(k, slots[k]);
    }
    hooks.after_visit(*visit++);
  };
  std::vector<Block::Flow> flows;
  for (const int slot : slots) {
    flows.push_back({blocks_.front().input(context, slot), {}});
  }
  if (extent_.is_first()) {
    within_next([&](std::size_t /*k*/, int slot) {
      embedding_.forward(context, slot, tokens(context, slot),
                         blocks_.front().input(context, slot));
    });
  } else {
    context.ops.cast(context.buffer(input_), blocks_.front().input(context, slots.front()),
                     context.compute);
  }
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    within_next([&](std::size_t k, int slot) {
      const GraphKey key{.layer = &blocks_[i],
                         .slot = slot,
                         .pass = Pass::kForward,
                         .parameters = context.parameters.whole(block_units_[i].own).data(),
                         .frozen = frozen_of(context, block_units_[i].frozen)};
      Block::Flow out = blocks_[i].output(context, slot);
      enqueue_block(context, key, [&] { out = blocks_[i].forward(context, slot, flows[k]); });
      flows[k] = out;
    });
  }
  if (extent_.is_last()) {
    within_next(
        [&](std::size_t k, int slot) { head_.forward(context, slot, flows[k].x, flows[k].delta); });
  } else {
    context.ops.add(flows.front().x, flows.front().delta, context.buffer(output_), context.compute);
  }
}

void TransformerStage::backward(const LayerContext& context,
                                DataParallel& data_parallel,
                                std::span<const MicroBatch> together) const {
  const bool is_last = together.back().last;
  const auto d_residual = [&](const MicroBatch& micro_batch) {
    return context.buffer(d_residual_, micro_batch.slot);
  };
  const auto is_trained = [&](int unit) {
    return context.blueprint.units().at(static_cast<std::size_t>(unit)).trained;
  };
  const GradTarget none = no_gradients(context);
  const auto gradients_of = [&](int unit) {
    if (!is_trained(unit)) return none;
    GradTarget gradients = data_parallel.grad_target(unit, together.front().index);
    gradients.unwanted = none.unwanted;
    return gradients;
  };
  const auto ready = [&](int unit) {
    if (is_trained(unit)) data_parallel.unit_grads_ready(unit, together.front().index, is_last);
  };
  auto visit = backward_walk_.begin();
  const auto within_next = [&](auto&& work) {
    const TraceRange range(name_of_unit(context, visit->unit));
    data_parallel.before_visit(*visit);
    work();
    data_parallel.after_visit(*visit++);
  };
  GradTarget table_gradients;  // of a tied table, whose first part the head writes
  if (extent_.is_last()) {
    within_next([&] {
      if (head_.tied()) {
        table_gradients = gradients_of(table_unit_);
      }
      GradTarget gradients = gradients_of(head_units_.own);
      GradTarget of_table = table_gradients;
      for (const MicroBatch& micro_batch : together) {
        const HeadTargets own_targets =
            head_targets(context, micro_batch.slot, micro_batch.loss_rows);
        const bool weighed = micro_batch.weigher != nullptr;
        if (weighed) {
          head_.compute_losses(context, micro_batch.slot, own_targets, {});
          micro_batch.weigher->weigh(micro_batch.index, head_.found(context),
                                     head_.weights(context));
        }
        head_.backward(context, micro_batch.slot, own_targets, micro_batch.gradient_scale, weighed,
                       micro_batch.index == 0 ? Write::kOverwrite : Write::kAdd,
                       d_residual(micro_batch), gradients, of_table);
        gradients.write = Write::kAdd;
        of_table.write = Write::kAdd;
      }
    });
    ready(head_units_.own);
    if (head_.tied() && !extent_.is_first()) {
      ready(table_unit_);
    }
  } else {
    context.ops.cast(context.buffer(d_output_), d_residual(together.front()), context.compute);
  }
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    const Units& units = block_units_[i];
    within_next([&] {
      BlockGradients gradients{gradients_of(units.own)};
      if (units.experts >= 0) {
        gradients.experts = gradients_of(units.experts);
      }
      for (const MicroBatch& micro_batch : together) {
        blocks_[i].bring_input_soon(context, micro_batch.slot);
        if (&micro_batch != &together.back()) {
          blocks_[i].bring_input_soon(context, (&micro_batch + 1)->slot);
        } else if (i > 0) {
          blocks_[i - 1].bring_input_soon(context, together.front().slot);
        }
        const GraphKey key{.layer = &blocks_[i],
                           .slot = micro_batch.slot,
                           .pass = Pass::kBackward,
                           .parameters = context.parameters.whole(units.own).data(),
                           .frozen = frozen_of(context, units.frozen),
                           .gradients = gradients.unit.data(),
                           .write = gradients.write};
        LayerContext own = context;
        own.token_scale = micro_batch.token_scale;
        own.losses_write = micro_batch.index == 0 ? Write::kOverwrite : Write::kAdd;
        enqueue_block(context, key, [&] {
          blocks_[i].backward(own, micro_batch.slot, d_residual(micro_batch), gradients);
        });
        gradients.write = Write::kAdd;
        gradients.experts.write = Write::kAdd;
      }
    });
    for (const int unit : units.all()) {
      ready(unit);
    }
  }
  if (extent_.is_first()) {
    within_next([&] {
      const bool head_wrote = extent_.is_last() && head_.tied();
      Embedding::Gradients gradients = embedding_.gradients([&](int unit) {
        return head_wrote && unit == table_unit_ ? table_gradients : gradients_of(unit);
      });
      gradients.table_write = head_wrote ? Write::kAdd : gradients.table_write;
      for (const MicroBatch& micro_batch : together) {
        embedding_.backward(context, micro_batch.slot, tokens(context, micro_batch.slot),
                            d_residual(micro_batch), gradients);
        gradients.add_from_here();
      }
    });
    for (const int unit : embedding_units_) {
      ready(unit);
    }
  } else {
    context.ops.cast(d_residual(together.front()), context.buffer(d_input_), context.compute);
  }
}

void TransformerStage::evaluate(const LayerContext& context,
                                DataParallel& data_parallel,
                                int slot,
                                std::int64_t loss_rows,
                                std::int64_t counted_samples,
                                Write loss_write) const {
  data_parallel.before_visit(losses_visit_);
  head_.evaluate(context, slot, head_targets(context, slot, loss_rows), counted_samples,
                 loss_write);
  data_parallel.after_visit(losses_visit_);
}

}  // namespace dstrain
