#include "engine/generate/inference_plan.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "engine/base/amount_text.h"

namespace dstrain {
namespace {}  // namespace

InferencePlan plan_inference(const InferenceShape& shape) {
  const ModelSpec& model = shape.model;
  check(1 <= shape.chunk_tokens && 1 <= shape.positions && shape.positions <= model.max_positions,
        "generation of {} positions, {} at once, with a model of {}", shape.positions,
        shape.chunk_tokens, model.max_positions);
  Blueprint blueprint;
  blueprint.begin_unit("embedding");
  const ParamRef table = blueprint.add_param(
      {.name = "embedding.token.weight", .shape = {model.vocab_size, model.hidden_size}});
  ParamRef position;
  if (model.position == PositionKind::kLearned) {
    position = blueprint.add_param(
        {.name = "embedding.position.weight", .shape = {model.max_positions, model.hidden_size}});
  }
  std::vector<InferenceBlock> blocks;
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer) {
    const std::string name = fmt::format("blocks.{}", layer);
    blueprint.begin_unit(name);
    blocks.push_back(InferenceBlock::declare(shape, layer, name, blueprint));
  }
  blueprint.begin_unit("head");
  const InferenceNorm final_norm = InferenceNorm::declare(shape, "final_norm", blueprint);
  const ParamRef head = model.tied_embeddings
                            ? table
                            : blueprint.add_param({.name = "head.weight",
                                                   .shape = {model.vocab_size, model.hidden_size}});
  blueprint.end_unit();
  const BufferRef tokens =
      blueprint.add_buffer({"tokens", {shape.chunk_tokens}, DType::kI32, Lifetime::kScratch});
  const BufferRef residual = blueprint.add_buffer(
      {"residual", {shape.chunk_tokens, model.hidden_size}, shape.compute, Lifetime::kScratch});
  const BufferRef logits = blueprint.add_buffer(
      {"logits", {1, model.vocab_size}, DType::kF32, Lifetime::kScratch, LayerKind::kLogits});
  const ShardMap shards(blueprint, 1);
  MemoryPlan memory(blueprint, shards, {.compute_dtype = shape.compute, .training = false});
  return {.shape = shape,
          .blueprint = std::move(blueprint),
          .table = table,
          .position = position,
          .blocks = std::move(blocks),
          .final_norm = final_norm,
          .head = head,
          .tokens = tokens,
          .residual = residual,
          .logits = logits,
          .shards = shards,
          .memory = std::move(memory)};
}

std::string describe_memory(const InferencePlan& plan) {
  const auto bytes = [&](RegionKind kind) { return plan.memory.region(kind).bytes; };
  const InferenceShape& shape = plan.shape;
  return fmt::format(
      "{}: weights {} ({} × {} bytes), cache {} ({} positions), scratch {}",
      size_text(plan.memory.bytes()), size_text(bytes(RegionKind::kParameters)),
      plan.blueprint.num_parameters(), size_of(shape.compute), size_text(bytes(RegionKind::kCache)),
      shape.positions,
      size_text(plan.memory.bytes() - bytes(RegionKind::kParameters) - bytes(RegionKind::kCache)));
}

}  // namespace dstrain
