// How a router chooses experts: scores from logits, weights from the scores of the chosen ones, and
// their gradients. Shazeer et al. 2017; the losses that keep experts busy are those of Fedus et al.
// 2021 (Switch Transformers, §2.2) and Zoph et al. 2022 (ST-MoE, §3.3), the groups those of
// DeepSeek-V2 (2024, §2.2.2) and -V3 (2024, §2.1.2).
//
// N tokens (B sequences × T positions), E experts, K chosen of them per token
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/math/host_device.h"
#include "kernels/math/vector_math.h"

namespace dstrain {

struct RouterRule {
  std::int64_t per_token = 1;      ///< K
  bool sigmoid = false;            ///< scores are sigmoids of the logits, not their softmax
  bool normalised = false;         ///< weights are divided by their sum
  float scale = 1.0F;              ///< and multiplied with this
  std::int64_t groups = 1;         ///< of neighbouring experts; divides E
  std::int64_t chosen_groups = 1;  ///< experts are chosen among those of so many groups
  bool group_by_two = false;       ///< a group counts by the sum of its two best, not by its best
};

/// Added to the sum that weights are divided by, as DeepSeek-V3 has it: sigmoids may all be 0.
constexpr float kLeastWeightSum = 1e-20F;

/// How the pieces of sequences lie in which tokens are counted (SequenceChunks): chunk by chunk, in
/// a chunk sequence by sequence, in there piece by piece, those of all parts.
struct CountedPieces {
  std::int64_t sequences = 0;
  std::int64_t chunks = 0;  ///< of each sequence
  std::int64_t pieces = 0;  ///< of each chunk
  std::int64_t first = 0;   ///< this rank's first piece
};

/// How many tokens of one whole sequence chose each expert, added up from the counts of its pieces.
class SequenceCounts {
 public:
  /// Takes the counts of all pieces, i32 [all pieces, E], and a piece of this rank, whose sequence
  /// is meant.
  DSTRAIN_HD SequenceCounts(const CountedPieces& lie,
                            std::int64_t experts,
                            const std::int32_t* counts,
                            std::int64_t piece)
      : chunks_(lie.chunks),
        pieces_(lie.pieces),
        between_pieces_(experts),
        between_chunks_(lie.sequences * lie.pieces * experts),
        first_(counts + (lie.first + piece) / lie.pieces % lie.sequences * lie.pieces * experts) {}

  DSTRAIN_HD std::int32_t of(std::int64_t expert) const {
    std::int32_t count = 0;
    for (std::int64_t c = 0; c < chunks_; ++c) {
      for (std::int64_t p = 0; p < pieces_; ++p) {
        count += first_[c * between_chunks_ + p * between_pieces_ + expert];
      }
    }
    return count;
  }

 private:
  std::int64_t chunks_;
  std::int64_t pieces_;
  std::int64_t between_pieces_;
  std::int64_t between_chunks_;
  const std::int32_t* first_;
};

/// The score of an expert. logsumexp: of the logarithms of its token's scores, log Σ exp(logit) of
/// a softmax.
DSTRAIN_HD float router_score(const RouterRule& rule, float logsumexp, float logit) {
  return rule.sigmoid ? sigmoid(logit) : fast_exp(logit - logsumexp);
}

/// logsumexp where scores are sigmoids: log Σ σ(logit). total: Σ σ(logit), which may be 0.
DSTRAIN_HD float router_log_total(float total) {
  return logf(total + kLeastWeightSum);
}

/// The share of an expert in the sum of its token's scores, which the auxiliary loss is taken of:
/// of sigmoids as DeepSeek-V3 has it (arXiv 2412.19437, eq. 19).
DSTRAIN_HD float router_share(const RouterRule& rule, float logsumexp, float logit) {
  return rule.sigmoid ? sigmoid(logit) * fast_exp(-logsumexp) : fast_exp(logit - logsumexp);
}

/// The number that an expert or a group of them is chosen by: NaN is the lowest, so that there is
/// always one to choose.
DSTRAIN_HD float choosable(float score) {
  return score == score ? score : -__builtin_huge_valf();
}

/// The factor that makes the weight of a chosen expert of its score.
DSTRAIN_HD float router_weight_factor(const RouterRule& rule, float chosen_sum) {
  return rule.normalised ? rule.scale / (chosen_sum + kLeastWeightSum) : rule.scale;
}

/// d loss / d score of a chosen expert. Normalised, w_j = scale · s_j / Σ s over the chosen:
/// (scale · d_j - Σ_i d_i w_i) / Σ s. weighted_sum: Σ_i d_i w_i. Of one expert, w is the scale
/// whatever its score, and rounding must not become a gradient, of which Adam makes whole steps.
DSTRAIN_HD float router_score_gradient(const RouterRule& rule,
                                       float factor,
                                       float weighted_sum,
                                       float d_weight) {
  if (rule.normalised && rule.per_token == 1) return 0.0F;
  return rule.normalised ? factor * (d_weight - weighted_sum / rule.scale) : factor * d_weight;
}

/// What the gradients of a token's row of logits have in common.
struct RouterRowGradient {
  float logsumexp;
  float chosen_sum;    ///< Σ over the chosen experts of score · d loss / d score
  float balance_mean;  ///< Σ over all experts of share · d loss / d share
  float d_logsumexp;   ///< through the z loss
};

/// d loss / d logit of one expert. d_score: through its weight, 0 where it was not chosen; d_share:
/// through the auxiliary loss.
///
///   softmax:  s = p               Σ_j d_j dp_j / dlogit = p (d - Σ p d)
///   sigmoid:  s = σ(logit)        ds / dlogit = s (1 - s)
///             p = s / Σ s         Σ_j d_j dp_j / dlogit = p (1 - s) (d - Σ p d)
DSTRAIN_HD float router_logit_gradient(const RouterRule& rule,
                                       const RouterRowGradient& row,
                                       float logit,
                                       float d_score,
                                       float d_share) {
  const float share = router_share(rule, row.logsumexp, logit);
  const float through_losses = share * (d_share - row.balance_mean + row.d_logsumexp);
  if (rule.sigmoid) {
    const float score = sigmoid(logit);
    return (1.0F - score) * (score * d_score + through_losses);
  }
  return share * (d_score - row.chosen_sum) + through_losses;
}

}  // namespace dstrain
