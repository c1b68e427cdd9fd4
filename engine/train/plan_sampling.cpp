#include "engine/train/plan_sampling.h"

#include <algorithm>
#include <utility>

#include "engine/generate/cached_model.h"

namespace dstrain {
namespace {

/// The number of texts that a rank continues side by side, where so many share them.
std::int64_t texts_at_once(const Config& config, const BatchPlan& batch, std::int64_t readers) {
  const PolicyConfig& policy = config.policy;
  if (!policy.enabled() || !CachedModel::reads_side_by_side(config.model, batch.sequence)) return 1;
  const std::int64_t completions = batch.samples_at(0) * policy.mini_batches;
  return std::min(policy.texts_at_once, (completions + readers - 1) / readers);
}

}  // namespace

std::optional<SamplingPlan> plan_sampling(const Config& config,
                                          const BatchPlan& batch,
                                          const Mesh& mesh,
                                          LayerShape shape,
                                          Blueprint& blueprint) {
  if (config.training.eval_prompts.empty() && !config.policy.enabled()) return std::nullopt;
  const std::int64_t texts =
      texts_at_once(config, batch, mesh.world_size() / mesh.degree(Axis::kTensor));
  const GenerationSizes sizes{
      .compute = shape.compute,
      .positions = shape.sequence,
      .texts = texts,
      .chunk_tokens = std::max(texts, std::min(texts * shape.sequence, kPromptChunk))};
  shape.batch = 1;
  shape.sequence = sizes.chunk_tokens;
  shape.cache_positions = sizes.positions;
  shape.cache_texts = sizes.texts;
  shape.context = {};
  shape.tensor.sequence_parallel = false;
  shape.fp8 = false;
  shape.documents = false;
  shape.weighs_targets = false;
  shape.skips_targets = false;
  shape.together = false;
  Blueprint once_more = blueprint.once_more("sampling/");
  TransformerStage stage = TransformerStage::declare(
      shape, {}, {.end_block = std::ssize(shape.model.layers)}, once_more);
  std::vector<BufferRef> parameters;
  if (config.zero.stage == 3) {
    for (const UnitDecl& unit : blueprint.units()) {
      parameters.push_back(once_more.add_buffer({"sampling/parameters of " + unit.name,
                                                 {unit.numel()},
                                                 shape.compute,
                                                 Lifetime::kWhole}));
    }
  }
  blueprint.add_buffers_of(once_more);
  return SamplingPlan{.sizes = sizes,
                      .blueprint = std::move(once_more),
                      .stage = std::move(stage),
                      .parameters = std::move(parameters)};
}

std::vector<BufferRef> plan_reference(const Config& config, DType compute, Blueprint& blueprint) {
  if (!config.policy.needs_reference() || config.adapters.enabled()) return {};
  std::vector<BufferRef> reference;
  for (const UnitDecl& unit : blueprint.units()) {
    BufferRef& copy = reference.emplace_back();
    if (!unit.trained) continue;
    copy = blueprint.add_buffer(
        {"reference/parameters of " + unit.name, {unit.numel()}, compute, Lifetime::kWhole});
  }
  return reference;
}

std::optional<GenerationPlan> plan_scoring(const Config& config, const LayerShape& shape) {
  if (!config.policy.scorer) return std::nullopt;
  const ModelSpec& model = *config.policy.scorer;
  // Its tokenizer may cut a text into more tokens.
  const std::int64_t positions = std::min(2 * shape.sequence, model.max_positions);
  return plan_generation(model, {.compute = shape.compute,
                                 .positions = positions,
                                 .chunk_tokens = std::min(positions, kPromptChunk)});
}

}  // namespace dstrain
