// PreferenceConfig: training on what people prefer, from pairs of answers or from single ones that
// were liked or not. "preferences", with TRL's names. log r of an answer is the sum of its tokens'
// log-probabilities less that by the reference, which is the model that training began with.
#pragma once

#include <cstdint>

namespace dstrain {

/// The loss of a pair, where d = log r(chosen) - log r(rejected) and σ is the logistic function, or
/// of a single answer.
enum class PreferenceLoss : std::uint8_t {
  kNone,
  kSigmoid,  ///< "sigmoid", DPO: -log σ(β d) (Rafailov et al. 2023, eq. 7)
  kHinge,    ///< "hinge", SLiC: max(0, 1 - β d) (Liu et al. 2023; Zhao et al. 2023)
  /// "ipo": (d - 1/2β)², of log r a token of its answer (Azar et al. 2023, eq. 17)
  kIpo,
  /// "robust": DPO where a share ε of the pairs is the wrong way round (Chowdhury et al. 2024)
  kRobust,
  kApoZero,  ///< "apo_zero": 1 - σ(β log r(c)) + σ(β log r(r)) (D'Oosterlinck et al. 2024, eq. 7)
  kApoDown,  ///< "apo_down": σ(β log r(c)) + 1 - σ(β d) (there, eq. 8)
  /// "orpo": without a reference, the next token of the chosen answer and its prompt, less β log σ
  /// of the log odds ratio of the answers (Hong et al. 2024, eq. 6 and 7)
  kOrpo,
  /// "reward": of scores instead of log r, -log σ(s(c) - s(r)) + ω (s(c) + s(r))², where s is what
  /// the model's head makes of an answer's last token: trains a reward model (Bradley and Terry
  /// 1952; ω: Eisenstein et al. 2023)
  kReward,
  // The following are of a single answer, which was liked or was not.
  /// "kto": w (1 - σ(β (log r - z))), or w (1 - σ(β (z - log r))); z is how far the model has moved
  /// away from the reference, the mean of log r over prompts with answers to others, at least 0
  /// (Ethayarajh et al. 2024, eq. 7)
  kKto,
  kApoZeroUnpaired  ///< "apo_zero_unpaired": the same with z = 0
};

struct PreferenceConfig {
  PreferenceLoss loss = PreferenceLoss::kNone;  ///< "loss_type"; none: no preferences
  double beta = 0.1;                            ///< β; IPO's τ and ORPO's λ
  double label_smoothing = 0.0;                 ///< ε, of "robust"
  double desirable_weight = 1.0;                ///< w of answers that were liked
  double undesirable_weight = 1.0;              ///< w of those that were not
  double center_rewards_coefficient = 0.0;      ///< ω, of "reward"

  [[nodiscard]] bool of_scores() const { return loss == PreferenceLoss::kReward; }
  [[nodiscard]] bool of_single_answers() const {
    return loss == PreferenceLoss::kKto || loss == PreferenceLoss::kApoZeroUnpaired;
  }
  /// Whether z is needed.
  [[nodiscard]] bool needs_divergence() const { return loss == PreferenceLoss::kKto; }
  [[nodiscard]] bool enabled() const { return loss != PreferenceLoss::kNone; }
  [[nodiscard]] bool needs_reference() const {
    return enabled() && loss != PreferenceLoss::kOrpo && !of_scores();
  }
  bool operator==(const PreferenceConfig&) const = default;
};

}  // namespace dstrain
