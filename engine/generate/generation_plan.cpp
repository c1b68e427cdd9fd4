#include "engine/generate/generation_plan.h"

#include <utility>

#include <fmt/format.h>

#include "engine/base/amount_text.h"
#include "engine/config/arch/model_counts.h"

namespace dstrain {

GenerationPlan plan_generation(const ModelSpec& model, const GenerationSizes& sizes) {
  check(1 <= sizes.texts && sizes.texts <= sizes.chunk_tokens && 1 <= sizes.positions &&
            sizes.positions <= model.max_positions,
        "generation of {} positions, {} at once, with a model of {}", sizes.positions,
        sizes.chunk_tokens, model.max_positions);
  Blueprint blueprint;
  TransformerStage stage =
      TransformerStage::declare({.model = model,
                                 .batch = 1,
                                 .sequence = sizes.chunk_tokens,
                                 .compute = sizes.compute,
                                 .cache_positions = sizes.positions,
                                 .cache_texts = sizes.texts},
                                {}, {.end_block = model.num_layers}, blueprint);
  const ShardMap shards(blueprint);
  MemoryPlan memory(blueprint, shards, {.compute_dtype = sizes.compute, .training = false});
  return {.model = model,
          .sizes = sizes,
          .blueprint = std::move(blueprint),
          .stage = std::move(stage),
          .shards = shards,
          .memory = std::move(memory)};
}

std::string describe_memory(const GenerationPlan& plan) {
  const auto bytes = [&](RegionKind kind) { return plan.memory.region(kind).bytes; };
  return fmt::format(
      "{}: weights {} ({} × {} bytes), cache {} ({} positions), scratch {}",
      size_text(plan.memory.bytes()), size_text(bytes(RegionKind::kParameters)),
      num_parameters(plan.model), size_of(plan.sizes.compute), size_text(bytes(RegionKind::kCache)),
      plan.sizes.positions,
      size_text(plan.memory.bytes() - bytes(RegionKind::kParameters) - bytes(RegionKind::kCache)));
}

}  // namespace dstrain
