// The losses of a pair of answers, or of a rated one, as functions of how likely they are
// (preference_config.h has the sources of the formulas).
#pragma once

#include "engine/config/preference_config.h"

namespace dstrain {

/// Of an answer: the sum of the log-probabilities of its tokens, their number, and the sum by the
/// reference, which is 0 where there is none. Of kReward, its score stands for the
/// first.
struct AnswerLikelihood {
  double log_probability = 0.0;
  double reference = 0.0;
  double tokens = 1.0;

  [[nodiscard]] double log_ratio() const { return log_probability - reference; }
};

/// A loss, and its derivatives by the log-probabilities of the two answers.
struct PairLoss {
  double loss = 0.0;
  double by_chosen = 0.0;
  double by_rejected = 0.0;
};

/// Of kOrpo, the part of the odds ratio.
PairLoss pair_loss(const PreferenceConfig& config,
                   const AnswerLikelihood& chosen,
                   const AnswerLikelihood& rejected);

/// A loss, and its derivative by the answer's log-probability.
struct RatedLoss {
  double loss = 0.0;
  double by_answer = 0.0;
};

/// Of a loss of single answers. `divergence`: z, nats; 0 where the loss has none.
RatedLoss rated_loss(const PreferenceConfig& config,
                     const AnswerLikelihood& answer,
                     bool is_liked,
                     double divergence);

}  // namespace dstrain
