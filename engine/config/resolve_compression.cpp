// Checks what compressed gradients ask of the other blocks.
#include <fmt/format.h>

#include "engine/config/resolve_parts.h"
#include "engine/config/zero_stage.h"

namespace dstrain {
namespace {

constexpr const char* kKind = "gradient_compression.kind";
constexpr const char* kStart = "gradient_compression.start_step";
constexpr const char* kStage = "zero_optimization.stage";
constexpr const char* kAccumulation = "data_types.grad_accum_dtype";
constexpr const char* kMaster = "bf16.bf16_master_weights_and_grads";

const char* name_of(CompressionKind kind) {
  return kind == CompressionKind::kPowerSgd ? "powersgd" : "top_k";
}

}  // namespace

void resolve_compression(LoadedConfig& loaded, std::int64_t data_parallel, Origins& origins) {
  const Config& config = loaded.config;
  const CompressionConfig& compression = config.gradient_compression;
  if (compression.kind == CompressionKind::kNone) return;
  const std::string name = name_of(compression.kind);
  if (cuts_of(config.zero.stage).gradients) {
    throw_config_error(
        origins[kStage], kStage,
        fmt::format("gradient_compression \"{}\" needs the whole gradient of each matrix on every "
                    "rank, and {} cuts it: write 1, or {} \"none\"",
                    name, config.zero.stage, kKind),
        {{ConfigEdit::Kind::kSet, kStage, "1"}});
  }
  if (sends_signs(config.optimizer.kind)) {
    throw_config_error(origins[kKind], kKind,
                       fmt::format("\"{}\" compresses gradients, and a 1-bit optimizer exchanges "
                                   "signs in their place: write \"none\", or take another "
                                   "optimizer.type",
                                   name),
                       {{ConfigEdit::Kind::kSet, kKind, "\"none\""}});
  }
  if (config.formats.bf16_master) {
    throw_config_error(origins[kMaster], kMaster,
                       fmt::format("gradient_compression \"{}\" needs gradients in fp32: leave it "
                                   "out, or write {} \"none\"",
                                   name, kKind));
  }
  if (config.formats.grad_accum.value_or(DType::kF32) != DType::kF32) {
    throw_config_error(origins[kAccumulation], kAccumulation,
                       fmt::format("gradient_compression \"{}\" adds what it could not send to "
                                   "gradients in fp32: write \"fp32\", or leave it out",
                                   name),
                       {{ConfigEdit::Kind::kSet, kAccumulation, "\"fp32\""}});
  }
  if (data_parallel == 1) {
    loaded.notices.push_back(fmt::format(
        "no effect: {}: one data-parallel rank has nobody to send gradients to", kKind));
  } else if (compression.start_step >= config.training.steps) {
    loaded.notices.push_back(
        fmt::format("{}: {} updates with exact sums are not fewer than the {} steps of the run: "
                    "nothing will be compressed",
                    kStart, compression.start_step, config.training.steps));
  }
}

}  // namespace dstrain
