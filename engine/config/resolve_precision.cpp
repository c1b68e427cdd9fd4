// Decides which number formats go together, and what they are by default.
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "engine/config/json_text.h"
#include "engine/config/resolve_parts.h"

namespace dstrain {
namespace {

constexpr const char* kAccumulation = "data_types.grad_accum_dtype";
constexpr const char* kCommunication = "communication_data_type";
constexpr const char* kMaster = "bf16.bf16_master_weights_and_grads";
constexpr const char* kStates = "bf16.bf16_optimizer_states";
constexpr const char* kMostSkips = "training.max_consecutive_skips";

/// The name of a format in the config.
const char* spelt(DType dtype) {
  return dtype == DType::kBF16 ? "bf16" : dtype == DType::kF16 ? "fp16" : "fp32";
}

void resolve_accumulation(LoadedConfig& loaded, Origins& origins) {
  FormatConfig& formats = loaded.config.formats;
  const DType compute = dtype_of(loaded.config.precision);
  if (!formats.grad_accum && formats.bf16_master) {
    formats.grad_accum = DType::kBF16;
    origins[kAccumulation] = fmt::format("derived: {}", kMaster);
  } else if (!formats.grad_accum) {
    formats.grad_accum = DType::kF32;
    origins[kAccumulation] = "default";
    if (compute != DType::kF32) {
      origins[kAccumulation] = "default (DeepSpeed's is the compute dtype)";
      loaded.notices.push_back(fmt::format(
          "{}: fp32 (DeepSpeed's default is the compute dtype, here {}): 2 bytes a parameter more, "
          "and nothing is lost to rounding over micro-batches",
          kAccumulation, spelt(compute)));
    }
  }
  const DType chosen = *formats.grad_accum;
  if (formats.bf16_master && chosen != DType::kBF16) {
    throw_config_error(
        origins[kAccumulation], kAccumulation,
        fmt::format("\"{}\" contradicts {} true, with which gradients are bf16: write \"bf16\", or "
                    "leave it out",
                    spelt(chosen), kMaster));
  }
  if (chosen != DType::kF32 && chosen != compute) {
    const std::string fix = compute == DType::kF32
                                ? "write \"fp32\""
                                : fmt::format("write \"fp32\" or \"{}\"", spelt(compute));
    throw_config_error(origins[kAccumulation], kAccumulation,
                       fmt::format("\"{}\" is neither fp32 nor what the model computes in, {}: {}",
                                   spelt(chosen), spelt(compute), fix));
  }
}

void resolve_communication(LoadedConfig& loaded, Origins& origins) {
  FormatConfig& formats = loaded.config.formats;
  const DType compute = dtype_of(loaded.config.precision);
  if (!formats.communication) {
    formats.communication = formats.grad_accum;
    origins[kCommunication] = compute == DType::kF32
                                  ? "derived: as accumulated"
                                  : "derived: as accumulated (DeepSpeed's is the compute dtype)";
  } else if (loaded.config.zero.quantized_gradients && loaded.config.zero.shard_ranks < 1 &&
             formats.communication != formats.grad_accum) {
    loaded.notices.emplace_back(
        "no effect: communication_data_type: gradients travel in 4 bits "
        "(zero_quantized_gradients)");
  }
  const DType chosen = *formats.communication;
  if (chosen != DType::kF32 && chosen != compute) {
    throw_config_error(origins[kCommunication], kCommunication,
                       fmt::format("\"{0}\" goes with {0} only, but the model computes in {1}: "
                                   "write \"fp32\", or leave it out",
                                   spelt(chosen), spelt(compute)));
  }
  if (formats.prescale_gradients && formats.gradient_predivide_factor != 1.0) {
    loaded.notices.emplace_back(
        "no effect: gradient_predivide_factor: prescale_gradients divides by all ranks before the "
        "sum");
  }
}

void check_optimizer_formats(LoadedConfig& loaded, Origins& origins) {
  const FormatConfig& formats = loaded.config.formats;
  const OptimizerKind kind = loaded.config.optimizer.kind;
  const std::string needs_f32 = kind == OptimizerKind::kLamb   ? "Lamb"
                                : kind == OptimizerKind::kMuon ? "Muon"
                                : sends_signs(kind)            ? "a 1-bit optimizer"
                                                               : "";
  for (const auto& [path, on] :
       {std::pair{kMaster, formats.bf16_master}, {kStates, formats.bf16_optimizer_states}}) {
    if (!needs_f32.empty() && on) {
      throw_config_error(
          origins[path], path,
          fmt::format("{} keeps its parameters and states in fp32 only: leave it out, or "
                      "take another optimizer.type",
                      needs_f32));
    }
  }
  if (sends_signs(kind) && formats.grad_accum.value_or(DType::kF32) != DType::kF32) {
    throw_config_error(
        origins[kAccumulation], kAccumulation,
        "what a 1-bit optimizer exchanges lies where gradients are added up, in fp32: write "
        "\"fp32\", or leave it out");
  }
  if (formats.bf16_optimizer_states && !formats.bf16_master) {
    loaded.notices.push_back(
        fmt::format("{}: with fp32 master weights, which DeepSpeed does not offer (it asks for {})",
                    kStates, kMaster));
  }
}

void tell_where_tf32_is_idle(LoadedConfig& loaded) {
  const Config& config = loaded.config;
  if (!config.training.tf32) return;
  if (config.precision != Precision::kF32) {
    loaded.notices.push_back(fmt::format(
        "no effect: training.tf32: it concerns fp32 matrices, and the model computes in {}",
        spelt(dtype_of(config.precision))));
  } else if (config.training.device != DeviceChoice::kCuda) {
    loaded.notices.emplace_back(
        "no effect: training.tf32: a CPU multiplies in full fp32 (training.device is not "
        "\"cuda\")");
  }
}

void tell_where_cudnn_is_idle(LoadedConfig& loaded) {
  const Config& config = loaded.config;
  if (config.training.attention == AttentionKernels::kOwn) return;
  if (config.precision == Precision::kF32) {
    loaded.notices.emplace_back(
        "no effect: training.attention: cuDNN's kernels are for bf16 and fp16, and the model "
        "computes "
        "in fp32");
  } else if (config.training.device != DeviceChoice::kCuda) {
    loaded.notices.emplace_back(
        "no effect: training.attention: cuDNN is for GPUs (training.device is not \"cuda\")");
  }
}

void check_loss_scale(const Config& config, Origins& origins) {
  const LossScaleConfig& scale = config.loss_scale;
  const bool dynamic = config.precision == Precision::kF16 && scale.static_scale == 0.0;
  if (dynamic && std::ldexp(1.0, static_cast<int>(scale.initial_scale_power)) < scale.min_scale) {
    throw_config_error(
        origins["fp16.min_loss_scale"], "fp16.min_loss_scale",
        fmt::format("{} is greater than the first scale, 2 to the fp16.initial_scale_power {}",
                    scale.min_scale, scale.initial_scale_power));
  }
}

/// Drops the formats of an open precision that go with another one.
void drop_other_formats(LoadedConfig& loaded) {
  Config& config = loaded.config;
  FormatConfig& formats = config.formats;
  const DType compute = dtype_of(config.precision);
  const auto tell = [&](const char* path) {
    loaded.notices.push_back(
        fmt::format("no effect: {}: the model computes in {}", path, spelt(compute)));
  };
  if (config.precision != Precision::kF16) config.loss_scale = {};
  if (config.precision != Precision::kBF16) {
    for (const auto& [path, on] :
         {std::pair{kMaster, &formats.bf16_master}, {kStates, &formats.bf16_optimizer_states}}) {
      if (*on) tell(path);
      *on = false;
    }
  }
  for (const auto& [path, dtype] :
       {std::pair{kAccumulation, &formats.grad_accum}, {kCommunication, &formats.communication}}) {
    if (!*dtype || *dtype == DType::kF32 || *dtype == compute) continue;
    tell(path);
    *dtype = std::nullopt;
  }
}

}  // namespace

void resolve_open_precision(LoadedConfig& loaded, const MachineFacts& facts, Origins& origins) {
  Config& config = loaded.config;
  const OpenPrecision open = std::exchange(config.open_precision, {});
  if (!open.bf16 && !open.f16) return;
  config.precision = open.bf16 && facts.multiplies_bf16 ? Precision::kBF16
                     : open.f16 && facts.multiplies_f16 ? Precision::kF16
                                                        : Precision::kF32;
  const std::string machine = facts.name.empty() ? "this machine" : facts.name;
  const char* const format = spelt(dtype_of(config.precision));
  const std::string why = config.precision == Precision::kF32
                              ? fmt::format("{} has no units for products in {}", machine,
                                            open.bf16 && open.f16 ? "bf16 or fp16"
                                            : open.bf16           ? "bf16"
                                                                  : "fp16")
                              : fmt::format("{} has units for products in {}", machine, format);
  if (open.bf16) origins["bf16.enabled"] = "derived: " + why;
  if (open.f16) origins["fp16.enabled"] = "derived: " + why;
  loaded.notices.push_back(fmt::format("precision: {}, since {} ({} is \"auto\")", format, why,
                                       open.f16 ? "fp16.enabled" : "bf16.enabled"));
  drop_other_formats(loaded);
}

void resolve_precision(LoadedConfig& loaded, Origins& origins) {
  constexpr std::int64_t kWhileScaleFalls = 40;  // 2^40: below any scale that could help
  constexpr std::int64_t kOtherwise = 5;
  resolve_accumulation(loaded, origins);
  resolve_communication(loaded, origins);
  check_optimizer_formats(loaded, origins);
  check_loss_scale(loaded.config, origins);
  tell_where_tf32_is_idle(loaded);
  tell_where_cudnn_is_idle(loaded);
  Config& config = loaded.config;
  if (!config.training.max_consecutive_skips) {
    const bool dynamic =
        config.precision == Precision::kF16 && config.loss_scale.static_scale == 0.0;
    config.training.max_consecutive_skips = dynamic ? kWhileScaleFalls : kOtherwise;
    origins[kMostSkips] =
        dynamic ? "derived: a dynamic loss scale falls by skipping steps" : "default";
  }
}

}  // namespace dstrain
