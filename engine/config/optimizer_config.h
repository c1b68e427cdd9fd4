// The "optimizer" of a run, as the user wrote it: part of config.h.
#pragma once

#include <cstdint>
#include <optional>

namespace dstrain {

enum class OptimizerKind : std::uint8_t {
  kAdamW,        ///< "AdamW", and "Adam" with adam_w_mode (DeepSpeed's default)
  kAdam,         ///< "Adam" with adam_w_mode false: the decay is added to the gradient
  kSgd,          ///< "SGD", with momentum and Nesterov
  kAdagrad,      ///< "Adagrad"
  kRmsprop,      ///< "RMSprop", with momentum or centered
  kLion,         ///< "Lion"
  kLamb,         ///< "Lamb"
  kMuon,         ///< "Muon": the blocks' matrices; everything else by AdamW
  kOneBitAdam,   ///< "OneBitAdam"
  kZeroOneAdam,  ///< "ZeroOneAdam"
  kOneBitLamb    ///< "OneBitLamb"
};

/// True for the 1-bit family: what data-parallel ranks exchange travels as signs after a while.
constexpr bool sends_signs(OptimizerKind kind) {
  return kind == OptimizerKind::kOneBitAdam || kind == OptimizerKind::kZeroOneAdam ||
         kind == OptimizerKind::kOneBitLamb;
}
/// True where an update looks at whole tensors, so that none may be cut by tensor parallelism.
constexpr bool needs_whole_tensors(OptimizerKind kind) {
  return kind == OptimizerKind::kMuon || kind == OptimizerKind::kLamb ||
         kind == OptimizerKind::kOneBitLamb;
}

/// The parameters that weight_decay applies to.
enum class DecayRule : std::uint8_t {
  kMatrices,  ///< "matrices": not norms and biases, as Hugging Face's Trainer has it
  kAll        ///< "all": the default of DeepSpeed and torch
};

/// "optimizer".
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double learning_rate = 1e-3;  ///< params.lr
  double beta1 = 0.9;           ///< params.betas[0]
  double beta2 = 0.999;
  double epsilon = 1e-8;                   ///< params.eps
  double weight_decay = 0.0;               ///< params.weight_decay
  DecayRule decay = DecayRule::kMatrices;  ///< params.decay
  bool bias_correction = true;
  double momentum = 0.0;         ///< SGD, RMSprop, Muon
  double dampening = 0.0;        ///< SGD
  bool nesterov = false;         ///< SGD, Muon
  double alpha = 0.99;           ///< RMSprop: of the running mean of squares
  bool centered = false;         ///< RMSprop
  double max_coeff = 10.0;       ///< LAMB, 1-bit LAMB: largest trust ratio
  double min_coeff = 0.01;       ///< likewise: smallest
  bool eps_inside_sqrt = false;  ///< LAMB
  /// 1-bit Adam and LAMB: updates with exact sums; 0/1 Adam: those that may move the variance
  /// (var_freeze_step).
  std::int64_t freeze_step = 100000;
  std::int64_t var_update_scaler = 16;     ///< 0/1 Adam: engine/plan/gradient_travel.h
  std::int64_t local_step_scaler = 32678;  ///< likewise
  std::int64_t local_step_clipper = 16;    ///< likewise
  double coeff_beta = 0.9;                 ///< 1-bit LAMB: of the running mean of trust ratios
  double factor_max = 4.0;                 ///< 1-bit LAMB: largest factor of the frozen trust ratio
  double factor_min = 0.5;                 ///< 1-bit LAMB: smallest
  double factor_threshold = 0.1;           ///< 1-bit LAMB: its largest change from update to update
  std::optional<double> muon_lr;           ///< Muon's matrices; absent: lr
  std::optional<double> adam_lr;           ///< Muon's other parameters; absent: lr

  bool operator==(const OptimizerConfig&) const = default;
};

}  // namespace dstrain
