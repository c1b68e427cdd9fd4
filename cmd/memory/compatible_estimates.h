// The memory estimates that other tools print, reproduced to the letter, so that plans made with
// them can be compared: DeepSpeed's estimate_zero{2,3}_model_states_mem_needs and Hugging Face's
// Model Memory Calculator (accelerate estimate-memory). They count by rules of thumb of their own;
// what a run of dstrain holds is in its MemoryPlan.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/model_spec.h"

namespace dstrain {

/// The sizes that DeepSpeed's estimators read off a model, cut into modules as transformers cuts
/// it.
struct DeepSpeedModelSize {
  std::int64_t total_params = 0;          ///< shared ones once
  std::int64_t largest_layer_params = 0;  ///< a single module's own, bias included

  bool operator==(const DeepSpeedModelSize&) const = default;
};
DeepSpeedModelSize deepspeed_model_size(const ModelSpec& model);

struct DeepSpeedHardware {
  std::int64_t gpus_per_node = 1;
  std::int64_t nodes = 1;
  double additional_buffer_factor = 1.5;  ///< on host memory
};

/// One combination of options; those that a stage lacks are false.
struct DeepSpeedEstimate {
  bool offload_optimizer = false;
  bool offload_param = false;
  bool zero_init = false;
  std::int64_t cpu_bytes = 0;  ///< of a node
  std::int64_t gpu_bytes = 0;  ///< of a rank

  bool operator==(const DeepSpeedEstimate&) const = default;
};

/// Every combination of options in DeepSpeed's order: ZeRO-2 has two, ZeRO-3 six.
std::vector<DeepSpeedEstimate> deepspeed_zero2_estimates(std::int64_t total_params,
                                                         const DeepSpeedHardware& hardware);
std::vector<DeepSpeedEstimate> deepspeed_zero3_estimates(const DeepSpeedModelSize& size,
                                                         const DeepSpeedHardware& hardware);

/// The table that DeepSpeed prints of them, GB of 2^30.
std::string deepspeed_zero2_text(std::int64_t total_params, const DeepSpeedHardware& hardware);
std::string deepspeed_zero3_text(const DeepSpeedModelSize& size, const DeepSpeedHardware& hardware);

/// The memory of training with Adam at batch size 1, in bytes; the largest is printed.
struct HuggingFaceTraining {
  std::int64_t model = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t step = 0;

  [[nodiscard]] std::int64_t peak() const;
  bool operator==(const HuggingFaceTraining&) const = default;
};

/// One row, whose figures are those of float32 divided by `divisor`.
struct HuggingFaceEstimate {
  std::string_view dtype;  ///< "float16" stands for bfloat16 too: same figures
  int divisor = 1;         ///< 1, 2, 4, 8
  std::int64_t float32_largest_layer_bytes = 0;
  std::int64_t float32_total_bytes = 0;
  std::optional<HuggingFaceTraining> training;  ///< none: "N/A"
};

/// The rows float32, float16, int8, int4. As in that tool, they are of the model without a head of
/// its own, its rotary tables included; the largest layer is a whole block or an embedding.
std::vector<HuggingFaceEstimate> huggingface_estimates(const ModelSpec& model);

/// "474.7 MB": of bytes / divisor, in steps of 1024, rounded to two decimals.
std::string huggingface_size(std::int64_t bytes, int divisor);

/// The table that accelerate estimate-memory prints.
std::string huggingface_text(const std::string& model_name,
                             const std::vector<HuggingFaceEstimate>& rows);

}  // namespace dstrain
