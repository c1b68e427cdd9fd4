// What a block keeps from forward to backward under each granularity, counted by hand: tensor by
// tensor, as a reader of the paper would.
//
// N tokens, C width, H query heads, K key/value heads, D head dim, F feed-forward width,
// e bytes of the compute dtype; statistics and log-sum-exps are f32
#include <catch2/catch.hpp>

#include "engine/model/transformer_stage.h"
#include "kernels/math/activation.h"

namespace dstrain {
namespace {

constexpr std::int64_t kBatch = 2;
constexpr std::int64_t kSequence = 24;
constexpr std::int64_t kN = kBatch * kSequence;

ModelSpec gpt2() {
  ModelSpec model;
  model.model_type = "gpt2";
  model.vocab_size = 50;
  model.hidden_size = 48;
  model.num_heads = 3;
  model.num_key_value_heads = 3;
  model.head_dim = 16;
  model.intermediate_size = 4 * 48;
  model.norm = NormKind::kLayerNorm;
  model.position = PositionKind::kLearned;
  model.max_positions = kSequence;
  model.activation = ActivationKind::kGeluTanh;
  model.gated_mlp = false;
  return model;
}

/// Heads of another total width than the model's, key/value heads shared by two.
ModelSpec llama() {
  ModelSpec model;
  model.vocab_size = 50;
  model.hidden_size = 40;
  model.num_heads = 4;
  model.num_key_value_heads = 2;
  model.head_dim = 12;
  model.intermediate_size = 56;
  return model;
}

/// Bytes of a stage's buffers of one lifetime.
std::int64_t bytes_of(Lifetime lifetime,
                      ModelSpec model,
                      DType compute,
                      std::int64_t blocks,
                      const RecomputeConfig& recompute) {
  model.num_layers = blocks;
  Blueprint blueprint;
  TransformerStage::declare(
      {.model = model, .batch = kBatch, .sequence = kSequence, .compute = compute}, recompute,
      {.first_block = 0, .end_block = blocks}, blueprint);
  std::int64_t bytes = 0;
  for (const BufferDecl& buffer : blueprint.buffers()) {
    bytes += buffer.lifetime == lifetime ? buffer.bytes() : 0;
  }
  return bytes;
}

std::int64_t saved_bytes(const ModelSpec& model,
                         DType compute,
                         std::int64_t blocks,
                         const RecomputeConfig& recompute) {
  return bytes_of(Lifetime::kSaved, model, compute, blocks, recompute);
}

std::int64_t scratch_bytes(const ModelSpec& model,
                           std::int64_t blocks,
                           RecomputeGranularity granularity) {
  return bytes_of(Lifetime::kScratch, model, DType::kF32, blocks,
                  {.granularity = granularity, .layers = std::nullopt});
}

/// What each further block adds.
std::int64_t saved_by_block(const ModelSpec& model,
                            DType compute,
                            RecomputeGranularity granularity) {
  const RecomputeConfig recompute{.granularity = granularity, .layers = std::nullopt};
  const std::int64_t one = saved_bytes(model, compute, 1, recompute);
  const std::int64_t three = saved_bytes(model, compute, 3, recompute);
  CHECK((three - one) % 2 == 0);
  return (three - one) / 2;
}

constexpr auto kNone = RecomputeGranularity::kNone;
constexpr auto kSelective = RecomputeGranularity::kSelective;
constexpr auto kFull = RecomputeGranularity::kFull;

TEST_CASE("what a GPT-2 block keeps is 16, 10 or 1 times its input", "[model][recompute]") {
  const ModelSpec model = gpt2();
  for (const DType compute : {DType::kF32, DType::kBF16, DType::kF16}) {
    const std::int64_t input = kN * 48 * size_of(compute);  // e·N·C
    const std::int64_t stats = 2 * kN * 4;                  // of one norm: mean and 1/deviation
    const std::int64_t logsumexp = kN * 3 * 4;              // of N queries in H heads
    // input, its norm, q‖k‖v, heads, their residual stream, its norm, 4C before and after GELU
    CHECK(saved_by_block(model, compute, kNone) ==
          (1 + 1 + 3 + 1 + 1 + 1 + 4 + 4) * input + 2 * stats + logsumexp);
    // without both norms and GELU's outputs
    CHECK(saved_by_block(model, compute, kSelective) == (1 + 3 + 1 + 1 + 4) * input + logsumexp);
    CHECK(saved_by_block(model, compute, kFull) == input);
  }
}

TEST_CASE("a LLaMA block keeps what its heads and its gates make of its input",
          "[model][recompute]") {
  const ModelSpec model = llama();
  constexpr std::int64_t kC = 40;
  constexpr std::int64_t kQueries = 4 * 12;    // H·D
  constexpr std::int64_t kKeyValues = 2 * 12;  // K·D
  constexpr std::int64_t kF = 56;
  for (const DType compute : {DType::kF32, DType::kBF16, DType::kF16}) {
    const std::int64_t e = size_of(compute);
    const std::int64_t stats = 2 * kN * 4;
    const std::int64_t logsumexp = kN * 4 * 4;
    const std::int64_t packed = kQueries + 2 * kKeyValues;
    // input, its norm, q‖k‖v, heads, their residual stream, its norm, gate‖up, their product
    CHECK(saved_by_block(model, compute, kNone) ==
          e * kN * (kC + kC + packed + kQueries + kC + kC + 2 * kF + kF) + 2 * stats + logsumexp);
    // without both norms and the gated product
    CHECK(saved_by_block(model, compute, kSelective) ==
          e * kN * (kC + packed + kQueries + kC + 2 * kF) + logsumexp);
    CHECK(saved_by_block(model, compute, kFull) == e * kN * kC);
  }
}

TEST_CASE("what is computed again has room for one block, however many there are",
          "[model][recompute]") {
  for (const ModelSpec& model : {gpt2(), llama()}) {
    const std::int64_t none = scratch_bytes(model, 1, kNone);
    for (const RecomputeGranularity granularity : {kSelective, kFull}) {
      const std::int64_t again = saved_by_block(model, DType::kF32, kNone) -
                                 saved_by_block(model, DType::kF32, granularity);
      CHECK(scratch_bytes(model, 1, granularity) == none + again);
      CHECK(scratch_bytes(model, 5, granularity) == none + again);
    }
  }
}

TEST_CASE("with layers the first blocks recompute and the others keep everything",
          "[model][recompute]") {
  for (const ModelSpec& model : {gpt2(), llama()}) {
    for (const RecomputeGranularity granularity : {kSelective, kFull}) {
      const auto saved = [&](std::optional<std::int64_t> layers) {
        return saved_bytes(model, DType::kBF16, 2, {.granularity = granularity, .layers = layers});
      };
      const std::int64_t difference = saved_by_block(model, DType::kBF16, kNone) -
                                      saved_by_block(model, DType::kBF16, granularity);
      CHECK(difference > 0);
      CHECK(saved(0) == saved_bytes(model, DType::kBF16, 2, {}));
      CHECK(saved(1) == saved(0) - difference);
      CHECK(saved(2) == saved(1) - difference);
      CHECK(saved(std::nullopt) == saved(2));
    }
  }
}

}  // namespace
}  // namespace dstrain
