// Requirements of products in 8 bits on the model and its layout.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "engine/config/arch/family.h"
#include "engine/config/json_text.h"
#include "engine/config/resolve_parts.h"
#include "kernels/core/f8.h"

namespace dstrain {
namespace {

constexpr const char* kEnabled = "fp8.enabled";

/// A dimension of the matrices that one rank multiplies, and the key that changes it.
struct Extent {
  std::string what;
  std::int64_t size;
  std::string key;
  std::int64_t value;   ///< of the key
  std::int64_t factor;  ///< size = value × factor / ranks
  std::int64_t ranks = 1;
  std::int64_t also = 1;  ///< a divisor that the key has whatever the products are in
};

/// The number that the key must be a multiple of.
std::int64_t unit_of(const Extent& extent) {
  const std::int64_t needed = kF8Multiple * extent.ranks;
  return std::lcm(needed / std::gcd(needed, extent.factor), extent.also);
}

std::vector<Extent> extents_of(const Config& config) {
  const ModelSpec& model = config.model;
  const std::string width_key = key_path(model, "hidden_size");
  const std::int64_t ranks = config.tensor_parallel.size;
  const std::string share = ranks == 1 ? "" : fmt::format(" / tensor_parallel.size {}", ranks);
  // Neighbours share a key/value head where there are fewer than ranks.
  const std::int64_t kv_heads = std::max<std::int64_t>(1, model.num_key_value_heads / ranks);
  const std::int64_t tokens = config.batch.micro_batch_size.value() *
                              (config.data.sequence_length / config.context_parallel.size);
  const std::int64_t heads_width = model.num_heads * model.head_dim;
  Extent heads{.what = fmt::format("{} heads × {}{}", model.num_heads, model.head_dim, share),
               .size = heads_width / ranks,
               .key = "model.head_dim",
               .value = model.head_dim,
               .factor = model.num_heads,
               .ranks = ranks,
               .also = 2};  // RoPE turns pairs
  const bool share_width = !family_of(model).has_key_value_keys;
  if (share_width) {
    heads.key = width_key;
    heads.value = model.hidden_size;
    heads.factor = 1;
    heads.also = model.num_heads;
  }
  Extent keys{.what = fmt::format("{} key/value head{} × {} on a rank", kv_heads,
                                  kv_heads == 1 ? "" : "s", model.head_dim),
              .size = kv_heads * model.head_dim,
              .key = "model.head_dim",
              .value = model.head_dim,
              .factor = kv_heads,
              .also = 2};
  if (share_width) {
    keys = heads;  // as many
  }
  std::vector<Extent> extents = {{.what = fmt::format("the hidden size {}", model.hidden_size),
                                  .size = model.hidden_size,
                                  .key = width_key,
                                  .value = model.hidden_size,
                                  .factor = 1,
                                  .also = model.num_heads},
                                 heads,
                                 keys};
  for (const WidthKey& feed_forward : feed_forward_keys(model)) {
    const std::int64_t width = feed_forward.value * feed_forward.times;
    extents.push_back({.what = fmt::format("the feed-forward width {}{}", width, share),
                       .size = width / ranks,
                       .key = feed_forward.path,
                       .value = feed_forward.value,
                       .factor = feed_forward.times,
                       .ranks = ranks,
                       .also = feed_forward.times == 1 ? 1 : model.num_heads});
  }
  extents.push_back(
      {.what = fmt::format("train_micro_batch_size_per_gpu {} × data.sequence_length {} tokens",
                           *config.batch.micro_batch_size, config.data.sequence_length),
       .size = tokens,
       .key = "data.sequence_length",
       .value = config.data.sequence_length,
       .factor = *config.batch.micro_batch_size});
  return extents;
}

}  // namespace

void resolve_fp8(const LoadedConfig& loaded, Origins& origins) {
  const Config& config = loaded.config;
  if (!config.fp8.enabled) return;
  if (config.precision == Precision::kF16) {
    throw_config_error(origins[kEnabled], kEnabled,
                       "true, and the model computes in fp16: 8-bit products go with bf16 or "
                       "fp32; set fp16.enabled to false and bf16.enabled to true");
  }
  if (config.model.latent.latent_rank > 0) {
    throw_config_error(origins[kEnabled], kEnabled,
                       "true, and the model's attention goes through latents, whose products are "
                       "not in 8 bits in this version: expected false");
  }
  if (config.training.mlp_tile_tokens) {
    throw_config_error(
        origins["training.mlp_tile_tokens"], "training.mlp_tile_tokens",
        fmt::format("{}, and fp8.enabled is true: an 8-bit product has one scale for "
                    "all its tokens, and goes in one piece; leave it out",
                    *config.training.mlp_tile_tokens));
  }
  for (const Extent& extent : extents_of(config)) {
    if (extent.size % kF8Multiple != 0) {
      throw_config_error(
          origins[kEnabled], kEnabled,
          fmt::format("{} make{} {}, which is not a multiple of {}, as 8-bit matrices must be: "
                      "expected {} {}, or false",
                      extent.what, extent.what.ends_with("tokens") ? "" : "s", extent.size,
                      kF8Multiple, extent.key, nearest_multiples(extent.value, unit_of(extent))));
    }
  }
}

}  // namespace dstrain
