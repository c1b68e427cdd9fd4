#include "engine/model/transformer_stage.h"

namespace dstrain {
namespace {

constexpr int kEmbeddingUnit = 0;

int block_unit(std::size_t block) {
  return static_cast<int>(block) + 1;
}

}  // namespace

TransformerStage TransformerStage::declare(const LayerShape& shape,
                                           const RecomputeConfig& recompute,
                                           Blueprint& blueprint) {
  TransformerStage stage;
  blueprint.begin_unit("embedding");
  stage.embedding_ = Embedding::declare(shape, blueprint);
  LayerShape block_shape = shape;
  for (std::int64_t layer = 0; layer < shape.model.num_layers; ++layer) {
    const std::string name = "blocks." + std::to_string(layer);
    blueprint.begin_unit(name);
    block_shape.recompute = recompute.of_block(layer);
    stage.blocks_.push_back(Block::declare(block_shape, name, blueprint));
  }
  blueprint.begin_unit("head");
  stage.head_ = LossHead::declare(shape, stage.embedding_.table(), blueprint);

  const Shape ids{shape.tokens()};
  stage.tokens_ = blueprint.add_buffer({"tokens", ids, DType::kI32, Lifetime::kSaved});
  stage.targets_ = blueprint.add_buffer({"targets", ids, DType::kI32, Lifetime::kSaved});
  stage.d_residual_ = blueprint.add_buffer(
      {"d_residual", {shape.tokens(), shape.model.hidden_size}, shape.compute, Lifetime::kScratch});
  return stage;
}

UnitWalk TransformerStage::forward_walk() const {
  UnitWalk walk;
  for (int unit = kEmbeddingUnit; unit <= head_unit(); ++unit) {
    walk.push_back({.pass = Pass::kForward, .unit = unit, .reads = {unit}, .writes = {}});
  }
  return walk;
}

std::vector<int> TransformerStage::units_of_logits() const {
  return head_.tied() ? std::vector<int>{head_unit(), kEmbeddingUnit}
                      : std::vector<int>{head_unit()};
}

UnitWalk TransformerStage::training_walk() const {
  UnitWalk walk = forward_walk();
  walk.push_back({.pass = Pass::kBackward,
                  .unit = head_unit(),
                  .reads = units_of_logits(),
                  .writes = units_of_logits()});
  for (int unit = head_unit() - 1; unit > kEmbeddingUnit; --unit) {
    walk.push_back({.pass = Pass::kBackward, .unit = unit, .reads = {unit}, .writes = {unit}});
  }
  // The gradient of a table look-up needs no table.
  walk.push_back(
      {.pass = Pass::kBackward, .unit = kEmbeddingUnit, .reads = {}, .writes = {kEmbeddingUnit}});
  return walk;
}

UnitWalk TransformerStage::evaluation_walk() const {
  UnitWalk walk = forward_walk();
  walk.push_back(
      {.pass = Pass::kForward, .unit = head_unit(), .reads = units_of_logits(), .writes = {}});
  return walk;
}

void TransformerStage::prepare(const ExecContext& context) const {
  for (const Block& block : blocks_) {
    block.prepare(context);
  }
}

Tensor TransformerStage::tokens(const ExecContext& context, int slot) const {
  return context.buffer(tokens_, slot);
}

Tensor TransformerStage::targets(const ExecContext& context, int slot) const {
  return context.buffer(targets_, slot);
}

void TransformerStage::forward(const ExecContext& context,
                               DataParallel& data_parallel,
                               int slot) const {
  const auto within = [&](int unit, auto&& work) {
    data_parallel.before_unit(unit, Pass::kForward);
    work();
    data_parallel.after_unit(unit, Pass::kForward);
  };
  Block::Flow flow{blocks_.front().input(context, slot), {}};
  within(kEmbeddingUnit, [&] {
    embedding_.forward(context, tokens(context, slot), blocks_.front().input(context, slot));
  });
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    within(block_unit(i), [&] { flow = blocks_[i].forward(context, slot, flow); });
  }
  within(head_unit(), [&] { head_.forward(context, slot, flow.x, flow.delta); });
}

void TransformerStage::backward(const ExecContext& context,
                                DataParallel& data_parallel,
                                const MicroBatch& micro_batch) const {
  const int slot = micro_batch.slot;
  const Tensor d_residual = context.buffer(d_residual_);
  const auto gradients_of = [&](int unit) {
    return data_parallel.grad_target(unit, micro_batch.index);
  };
  const auto within = [&](int unit, auto&& work) {
    data_parallel.before_unit(unit, Pass::kBackward);
    work();
    data_parallel.after_unit(unit, Pass::kBackward);
    data_parallel.unit_grads_ready(unit, micro_batch.index, micro_batch.last);
  };
  // A tied head writes the first part of the embedding's gradient.
  GradTarget embedding_gradients;
  within(head_unit(), [&] {
    if (head_.tied()) {
      embedding_gradients = gradients_of(kEmbeddingUnit);
    }
    head_.backward(context, slot, targets(context, slot), micro_batch.gradient_scale,
                   micro_batch.index == 0 ? Write::kOverwrite : Write::kAdd, d_residual,
                   gradients_of(head_unit()), embedding_gradients);
  });
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    const int unit = block_unit(i);
    within(unit, [&] { blocks_[i].backward(context, slot, d_residual, gradients_of(unit)); });
  }
  within(kEmbeddingUnit, [&] {
    if (!head_.tied()) {
      embedding_gradients = gradients_of(kEmbeddingUnit);
    }
    embedding_.backward(context, tokens(context, slot), d_residual,
                        head_.tied() ? Write::kAdd : embedding_gradients.write,
                        embedding_gradients);
  });
}

void TransformerStage::evaluate(const ExecContext& context,
                                DataParallel& data_parallel,
                                int slot,
                                Write loss_write) const {
  data_parallel.before_unit(head_unit(), Pass::kForward);
  head_.evaluate(context, slot, targets(context, slot), loss_write);
  data_parallel.after_unit(head_unit(), Pass::kForward);
}

}  // namespace dstrain
