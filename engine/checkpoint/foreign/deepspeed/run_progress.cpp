#include "engine/checkpoint/foreign/deepspeed/run_progress.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/foreign/deepspeed/file_context.h"

namespace dstrain {
namespace {

std::int64_t count_of(const PickleValue& value, const std::string& what) {
  const std::int64_t count = value.integer(what);
  if (count < 0) {
    throw CheckpointError(fmt::format("{} is {}", what, count));
  }
  return count;
}

/// Releases before 0.3 leave some out.
std::int64_t count_or_zero(const PickleValue& root, const char* key) {
  const auto value = root.find(key);
  return value && !value->is_none() ? count_of(*value, key) : 0;
}

/// DeepSpeed's schedulers count from -1, torch's from 0.
std::optional<std::int64_t> scheduler_step(const PickleValue& root) {
  const auto scheduler = root.find("lr_scheduler");
  if (!scheduler || scheduler->kind() != PickleKind::kDict) {
    return std::nullopt;
  }
  if (const auto last = scheduler->find("last_batch_iteration")) {
    constexpr std::int64_t kMost = std::int64_t{1} << 62;
    return std::clamp<std::int64_t>(last->integer("last_batch_iteration"), -1, kMost) + 1;
  }
  if (const auto last = scheduler->find("last_epoch")) {
    return count_of(*last, "last_epoch");
  }
  return std::nullopt;
}

StoredLossScale scale_from(const PickleValue& state, const char* hysteresis) {
  StoredLossScale scale{
      .scale = state.at("cur_scale").number("cur_scale"),
      .iteration = count_of(state.at("cur_iter"), "cur_iter"),
      .last_overflow = state.at("last_overflow_iter").integer("last_overflow_iter")};
  if (hysteresis != nullptr) {
    scale.hysteresis = count_of(state.at(hysteresis), hysteresis);
  }
  if (!std::isfinite(scale.scale) || scale.scale <= 0.0) {
    throw CheckpointError(fmt::format("the loss scale is {}", scale.scale));
  }
  return scale;
}

}  // namespace

RunProgress read_progress(const TorchFile& model_states) {
  return reading(model_states, [](const PickleValue& root) {
    return RunProgress{.global_steps = count_of(root.at("global_steps"), "global_steps"),
                       .global_samples = count_or_zero(root, "global_samples"),
                       .skipped_steps = count_or_zero(root, "skipped_steps"),
                       .scheduler_step = scheduler_step(root)};
  });
}

std::optional<StoredLossScale> read_loss_scale(const PickleValue& optimizer) {
  if (optimizer.kind() != PickleKind::kDict) {
    return std::nullopt;
  }
  if (const auto scaler = optimizer.find("loss_scaler")) {
    const auto attributes = scaler->attributes();
    return attributes && scaler->class_name().ends_with(".DynamicLossScaler")
               ? std::optional(scale_from(*attributes, "cur_hysteresis"))
               : std::nullopt;
  }
  const auto is_dynamic = optimizer.find("dynamic_loss_scale");
  return is_dynamic && is_dynamic->truth("dynamic_loss_scale")
             ? std::optional(scale_from(optimizer, nullptr))
             : std::nullopt;
}

}  // namespace dstrain
