// What products in 8 bits ask of the model and of its layout.
#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "engine/spec/json_text.h"
#include "engine/spec/resolve_parts.h"
#include "kernels/core/f8.h"

namespace dstrain {
namespace {

constexpr const char* kEnabled = "fp8.enabled";

/// A dimension of the matrices that one rank multiplies.
struct Extent {
  std::string what;
  std::int64_t size;
};

std::vector<Extent> extents_of(const Config& config) {
  const ModelSpec& model = config.model;
  const std::int64_t ranks = config.tensor_parallel.size;
  const std::string share = ranks == 1 ? "" : fmt::format(" / tensor_parallel.size {}", ranks);
  // Neighbours share a key/value head where there are fewer than ranks.
  const std::int64_t kv_heads = std::max<std::int64_t>(1, model.num_key_value_heads / ranks);
  const std::int64_t tokens = config.batch.micro_batch_size.value() * config.data.sequence_length;
  return {{fmt::format("the hidden size {}", model.hidden_size), model.hidden_size},
          {fmt::format("{} heads × {}{}", model.num_heads, model.head_dim, share),
           model.num_heads * model.head_dim / ranks},
          {fmt::format("{} key/value head{} × {} on a rank", kv_heads, kv_heads == 1 ? "" : "s",
                       model.head_dim),
           kv_heads * model.head_dim},
          {fmt::format("the feed-forward width {}{}", model.intermediate_size, share),
           model.intermediate_size / ranks},
          {fmt::format("train_micro_batch_size_per_gpu {} × data.sequence_length {} tokens",
                       *config.batch.micro_batch_size, config.data.sequence_length),
           tokens}};
}

}  // namespace

void resolve_fp8(const LoadedConfig& loaded, Origins& origins) {
  const Config& config = loaded.config;
  if (!config.fp8.enabled) return;
  if (config.precision == Precision::kF16) {
    throw_config_error(origins[kEnabled], kEnabled,
                       "true, and the model computes in fp16: 8-bit products stand beside bf16 or "
                       "fp32, set fp16.enabled to false and bf16.enabled to true");
  }
  for (const Extent& extent : extents_of(config)) {
    if (extent.size % kF8Multiple != 0) {
      throw_config_error(
          origins[kEnabled], kEnabled,
          fmt::format("{} make{} {}, which is no multiple of {}, as 8-bit matrices must be: "
                      "expected {}, or false",
                      extent.what, extent.what.ends_with("tokens") ? "" : "s", extent.size,
                      kF8Multiple, nearest_multiples(extent.size, kF8Multiple)));
    }
  }
}

}  // namespace dstrain
