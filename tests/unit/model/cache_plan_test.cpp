// The declarations of a model that extends a cache of keys and values: the parameters of the model
// that trains, the cache as counted by hand, and nothing that only a backward would read.
//
// N tokens of a forward, P positions of the cache, L blocks, C width, H query heads, K key/value
// heads, D head dim, F feed-forward width, V vocabulary, e bytes of the compute dtype
#include <catch2/catch.hpp>

#include "engine/model/transformer_stage.h"
#include "kernels/math/activation.h"

namespace dstrain {
namespace {

constexpr std::int64_t kL = 3;
constexpr std::int64_t kN = 5;
constexpr std::int64_t kP = 24;

/// Grouped heads of another total width than the model's, biases, a window from block 1 on.
ModelSpec grouped(bool tied) {
  ModelSpec model;
  model.vocab_size = 50;
  model.hidden_size = 40;
  model.num_layers = kL;
  model.num_heads = 4;
  model.num_key_value_heads = 2;
  model.head_dim = 12;
  model.intermediate_size = 56;
  model.qkv_bias = true;
  model.tied_embeddings = tied;
  model.max_positions = kP;
  model.attention_window = 7;
  model.first_window_layer = 1;
  return model;
}

ModelSpec gpt2() {
  ModelSpec model;
  model.model_type = "gpt2";
  model.vocab_size = 50;
  model.hidden_size = 48;
  model.num_layers = kL;
  model.num_heads = 3;
  model.num_key_value_heads = 3;
  model.head_dim = 16;
  model.intermediate_size = 4 * 48;
  model.norm = NormKind::kLayerNorm;
  model.position = PositionKind::kLearned;
  model.max_positions = kP;
  model.activation = ActivationKind::kGeluTanh;
  model.gated_mlp = false;
  model.mlp_bias = true;
  model.attention_output_bias = true;
  model.tied_embeddings = true;
  return model;
}

Blueprint declared(const LayerShape& shape) {
  Blueprint blueprint;
  TransformerStage::declare(shape, {}, {.end_block = kL}, blueprint);
  return blueprint;
}

std::int64_t bytes_of(const Blueprint& blueprint, Lifetime lifetime) {
  std::int64_t bytes = 0;
  for (const BufferDecl& buffer : blueprint.buffers()) {
    bytes += buffer.lifetime == lifetime ? buffer.bytes() : 0;
  }
  return bytes;
}

}  // namespace

TEST_CASE("a model that extends a cache declares the parameters of the one that trains",
          "[model][generate]") {
  for (const ModelSpec& model : {gpt2(), grouped(true), grouped(false)}) {
    const Blueprint trains = declared({.model = model, .batch = 2, .sequence = kN});
    const Blueprint extends = declared({.model = model, .sequence = kN, .cache_positions = kP});
    REQUIRE(extends.units().size() == trains.units().size());
    for (std::size_t unit = 0; unit < trains.units().size(); ++unit) {
      const UnitDecl& one = trains.units()[unit];
      const UnitDecl& other = extends.units()[unit];
      CHECK(other.name == one.name);
      REQUIRE(other.params.size() == one.params.size());
      for (std::size_t i = 0; i < one.params.size(); ++i) {
        CHECK(other.params[i].name == one.params[i].name);
        CHECK(other.params[i].shape == one.params[i].shape);
      }
    }
  }
}

TEST_CASE("a model that extends a cache has that cache, and nothing for a backward",
          "[model][generate]") {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const std::int64_t e = size_of(compute);
    const ModelSpec model = grouped(false);
    const Blueprint blueprint =
        declared({.model = model, .sequence = kN, .compute = compute, .cache_positions = kP});
    for (const BufferDecl& buffer : blueprint.buffers()) {
      CAPTURE(buffer.name);
      CHECK_FALSE(buffer.in_backward_only);
    }
    CHECK(bytes_of(blueprint, Lifetime::kSaved) == 0);
    // L blocks × P positions × K heads of keys and of values.
    CHECK(bytes_of(blueprint, Lifetime::kCache) == kL * kP * 2 * 2 * 12 * e);
    // The cosine and the sine of D/2 pairs for every position, once for all blocks.
    CHECK(bytes_of(blueprint, Lifetime::kConstant) == kP * 2 * 6 * 4);
    // Once for all blocks: two residuals, two norms' outputs and two halves' results (C each),
    // q‖k‖v, heads, gate‖up and hidden, and two norms' statistics and the ids of tokens of 4 bytes.
    // Of the last token: its residual, norm and statistics, and the logits, in f32.
    const std::int64_t wide = 6 * 40 + (4 + 2 * 2) * 12 + 4 * 12 + 2 * 56 + 56;
    CHECK(bytes_of(blueprint, Lifetime::kScratch) ==
          kN * (wide * e + 2 * 2 * 4 + 4) + 2 * 40 * e + 2 * 4 + 50 * 4);
  }
}

}  // namespace dstrain
