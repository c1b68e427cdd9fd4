// Checks the keys that a mixture of experts does not go with, and the number of ranks that share
// its experts.
#include <string>

#include <fmt/format.h>

#include "engine/config/resolve_parts.h"

namespace dstrain {
namespace {

constexpr const char* kSize = "expert_parallel.size";
constexpr const char* kTensorSize = "expert_parallel.tensor_size";
constexpr const char* kCapacity = "training.expert_capacity_factor";

/// Whether tensor-parallel ranks each have whole experts, for tokens of their own.
bool have_own_tokens(const Config& config) {
  return config.expert_parallel.tensor_ranks(config.tensor_parallel.size) <
         config.tensor_parallel.size;
}

/// Refuses the keys whose traffic knows one group of ranks: experts have a group of their own.
void check_neighbours(const Config& config, Origins& origins) {
  const auto refuse = [&](const char* path, const std::string& what) {
    if (config.expert_parallel.size == 1) {
      throw_config_error(origins[kTensorSize], kTensorSize,
                         fmt::format("1, with tensor_parallel.size {}, and {} {}: whole experts "
                                     "beside layers in parts do not go with that in this version; "
                                     "leave one of the two out",
                                     config.tensor_parallel.size, path, what));
    }
    throw_config_error(origins[kSize], kSize,
                       fmt::format("{}, and {} {}: experts of other ranks do not go with that in "
                                   "this version; expected 1, or leave {} out",
                                   config.expert_parallel.size, path, what, path));
  };
  const OptimizerKind optimizer = config.optimizer.kind;
  if (sends_signs(optimizer)) refuse("optimizer.type", "sends signs");
  if (optimizer == OptimizerKind::kLamb) refuse("optimizer.type", "is \"Lamb\"");
  if (config.gradient_compression.kind != CompressionKind::kNone) {
    refuse("gradient_compression", "is set");
  }
  if (config.zero.secondary_ranks > 1) {
    refuse("zero_optimization.zero_hpz_partition_size", "is set");
  }
  if (config.zero.shard_ranks > 0) refuse("zero_optimization.mics_shard_size", "is set");
  if (config.zero.quantized_gradients) {
    refuse("zero_optimization.zero_quantized_gradients", "is set");
  }
}

void check_tensor_size(const Config& config, Origins& origins) {
  const std::optional<int> written = config.expert_parallel.tensor_size;
  const int ranks = config.tensor_parallel.size;
  if (!written || *written == ranks) return;
  if (*written != 1) {
    throw_config_error(
        origins[kTensorSize], kTensorSize,
        ranks == 1 ? fmt::format("{}, with tensor_parallel.size 1: expected 1", *written)
                   : fmt::format("{}, with tensor_parallel.size {}: in this version expected "
                                 "1, for whole experts, or {}, for as many parts",
                                 *written, ranks, ranks),
        {{ConfigEdit::Kind::kSet, kTensorSize, "1"}});
  }
  if (!config.tensor_parallel.sequence_parallel) {
    throw_config_error(
        origins[kTensorSize], kTensorSize,
        fmt::format(
            "1, with tensor_parallel.size {}: whole experts take the tokens that a rank has "
            "of its own, and it has some with tensor_parallel.sequence_parallel: expected "
            "that, or {}",
            ranks, ranks),
        {{ConfigEdit::Kind::kSet, "tensor_parallel.sequence_parallel", "true"}});
  }
}

void check_ranks(const Config& config, std::int64_t same_parameters, Origins& origins) {
  const std::int64_t size = config.expert_parallel.size;
  const auto refuse_unless_divisor = [&](std::int64_t of, const std::string& what) {
    if (of % size == 0) return;
    std::int64_t fits = size;
    while (of % fits != 0)
      --fits;
    throw_config_error(
        origins[kSize], kSize,
        fmt::format("{} does not divide {}: expected {}, or another divisor", size, what, fits),
        {{ConfigEdit::Kind::kSet, kSize, std::to_string(fits)}});
  };
  refuse_unless_divisor(config.model.experts.count,
                        fmt::format("the {} experts of a layer", config.model.experts.count));
  refuse_unless_divisor(same_parameters,
                        fmt::format("the {} ranks that have other tokens", same_parameters));
}

/// Refuses a capacity where ranks or tiles share sequences, since none then knows which of a
/// sequence's tokens come first; tells of one that has place for all tokens.
void check_capacity(LoadedConfig& loaded, Origins& origins) {
  const Config& config = loaded.config;
  const std::optional<double> factor = config.training.expert_capacity_factor;
  if (!factor) return;
  if (have_own_tokens(config)) {
    throw_config_error(
        origins[kCapacity], kCapacity,
        fmt::format("{}, with {} 1 and tensor_parallel.size {}: experts drop tokens of whole "
                    "sequences alone in this version; leave one of the two out",
                    *factor, kTensorSize, config.tensor_parallel.size));
  }
  if (config.context_parallel.size > 1) {
    throw_config_error(
        origins[kCapacity], kCapacity,
        fmt::format("{}, with context_parallel.size {}: experts drop tokens of whole "
                    "sequences alone in this version; leave it out",
                    *factor, config.context_parallel.size));
  }
  if (const auto tile = config.training.mlp_tile_tokens) {
    throw_config_error(
        origins[kCapacity], kCapacity,
        fmt::format("{}, with training.mlp_tile_tokens {}: experts drop tokens of whole sequences "
                    "alone in this version, and tiles hold parts of them; leave one of the two out",
                    *factor, *tile));
  }
  const ExpertsSpec& experts = config.model.experts;
  if (*factor * static_cast<double>(experts.per_token) >= static_cast<double>(experts.count)) {
    loaded.notices.push_back(
        fmt::format("no effect: {}: {} times an even share is all tokens", kCapacity, *factor));
  }
}

}  // namespace

void resolve_experts(LoadedConfig& loaded,
                     std::optional<std::int64_t> same_parameters,
                     Origins& origins) {
  const Config& config = loaded.config;
  if (config.model.experts.count == 0) {
    if (config.expert_parallel.size > 1) {
      throw_config_error(
          origins[kSize], kSize,
          fmt::format("{}, and the model has no experts: expected 1", config.expert_parallel.size));
    }
    if (const auto size = config.expert_parallel.tensor_size) {
      throw_config_error(origins[kTensorSize], kTensorSize,
                         fmt::format("{}, and the model has no experts: leave it out", *size));
    }
    if (const auto factor = config.training.expert_capacity_factor) {
      throw_config_error(origins[kCapacity], kCapacity,
                         fmt::format("{}, and the model has no experts: leave it out", *factor));
    }
    return;
  }
  const auto refuse = [&](const char* path, const std::string& message) {
    throw_config_error(origins[path], path, message);
  };
  if (config.fp8.enabled) {
    refuse("fp8.enabled",
           "true, and the model is a mixture of experts, whose products are not in 8 bits in this "
           "version: expected false");
  }
  if (config.training.cuda_graphs) {
    refuse("training.cuda_graphs",
           "true, and the model is a mixture of experts, whose numbers of rows the host waits for "
           "within a block, which a graph cannot hold: expected false");
  }
  check_tensor_size(config, origins);
  check_capacity(loaded, origins);
  if (config.expert_parallel.size > 1 && same_parameters) {
    const int others = have_own_tokens(config) ? config.tensor_parallel.size : 1;
    check_ranks(config, *same_parameters * others, origins);
  }
  if (config.expert_parallel.size > 1 || have_own_tokens(config)) {
    check_neighbours(config, origins);
  }
}

}  // namespace dstrain
