// How tokens choose experts: a token at a time, in scalar code, which the products beside it
// outweigh a thousandfold.
//
// N tokens (B sequences × T positions), E experts, K chosen of them per token
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/routing_operands.h"

namespace dstrain {
namespace {

constexpr std::int64_t kTokensOfPiece = 64;

float logsumexp_of(const float* logits, std::int64_t experts) {
  float largest = logits[0];
  for (std::int64_t e = 1; e < experts; ++e) {
    largest = std::max(largest, logits[e]);
  }
  float total = 0.0F;
  for (std::int64_t e = 0; e < experts; ++e) {
    total += fast_exp(logits[e] - largest);
  }
  return largest + std::log(total);
}

/// Returns log Σ exp(logit) of a token where scores are a softmax, log Σ σ(logit) where they are
/// sigmoids.
float logsumexp_of(const RouterRule& rule, const float* logits, std::int64_t experts) {
  if (!rule.sigmoid) return logsumexp_of(logits, experts);
  float total = 0.0F;
  for (std::int64_t e = 0; e < experts; ++e) {
    total += sigmoid(logits[e]);
  }
  return router_log_total(total);
}

/// Marks the best experts [begin, end) that are allowed, one after the other; of equal ones the
/// first. `allowed` is left without those that were taken.
template <typename Take>
void take_best(
    std::int64_t count, const float* scores, char* allowed, std::int64_t experts, Take&& take) {
  for (std::int64_t taken = 0; taken < count; ++taken) {
    std::int64_t best = -1;
    for (std::int64_t e = 0; e < experts; ++e) {
      if (allowed[e] != 0 && (best < 0 || scores[e] > scores[best])) {
        best = e;
      }
    }
    allowed[best] = 0;
    take(best);
  }
}

/// How much a group counts.
float group_score(const float* scores, std::int64_t size, bool by_two) {
  float best = scores[0];
  float second = -INFINITY;
  for (std::int64_t e = 1; e < size; ++e) {
    if (scores[e] > best) {
      second = best;
      best = scores[e];
    } else if (scores[e] > second) {
      second = scores[e];
    }
  }
  return by_two && size > 1 ? best + second : best;
}

/// Scratch for one token: what experts and groups are chosen by, and which may still be.
struct ChoiceScratch {
  ChoiceScratch(float* numbers, std::int64_t experts, std::int64_t groups)
      : scores(numbers),
        group_scores(scores + experts),
        allowed(reinterpret_cast<char*>(group_scores + groups)),
        allowed_groups(allowed + experts) {}
  static std::int64_t floats(std::int64_t experts, std::int64_t groups) {
    return (experts + groups) * 2;
  }
  float* scores;
  float* group_scores;
  char* allowed;
  char* allowed_groups;
};

}  // namespace

void CpuOps::choose_experts(const ExpertChoice& choice, Stream& stream) {
  const RouterSizes sizes = expect_choice(choice);
  stream.run([=, this, tokens = sizes.tokens, experts = sizes.experts] {
    const RouterRule& rule = choice.rule;
    const std::int64_t group_size = experts / rule.groups;
    const float* const bias = pointer<float>(choice.bias_E);
    const std::int64_t pieces = (tokens + kTokensOfPiece - 1) / kTokensOfPiece;
    const std::int64_t floats = ChoiceScratch::floats(experts, rule.groups);
    const auto lease = scratch_.lease(threads_ * floats * size_of(DType::kF32));
    parallel_for(threads_, pieces, [&](std::int64_t piece, int worker) {
      const ChoiceScratch scratch(lease.as<float>() + worker * floats, experts, rule.groups);
      const std::int64_t begin = piece * kTokensOfPiece;
      for (std::int64_t n = begin; n < std::min(begin + kTokensOfPiece, tokens); ++n) {
        const float* const logits = pointer<float>(choice.logits_NE) + n * experts;
        const float logsumexp = logsumexp_of(rule, logits, experts);
        pointer<float>(choice.logsumexp_N)[n] = logsumexp;
        for (std::int64_t e = 0; e < experts; ++e) {
          const float added = bias == nullptr ? 0.0F : bias[e];
          scratch.scores[e] = choosable(router_score(rule, logsumexp, logits[e]) + added);
        }
        std::fill_n(scratch.allowed, experts, static_cast<char>(rule.groups == 1 ? 1 : 0));
        if (rule.groups > 1) {
          for (std::int64_t g = 0; g < rule.groups; ++g) {
            scratch.group_scores[g] =
                group_score(scratch.scores + g * group_size, group_size, rule.group_by_two);
          }
          std::fill_n(scratch.allowed_groups, rule.groups, char{1});
          take_best(rule.chosen_groups, scratch.group_scores, scratch.allowed_groups, rule.groups,
                    [&](std::int64_t g) {
                      std::fill_n(scratch.allowed + g * group_size, group_size, char{1});
                    });
        }
        auto* const chosen = pointer<std::int32_t>(choice.chosen_NK) + n * rule.per_token;
        float* const weights = pointer<float>(choice.weights_NK) + n * rule.per_token;
        std::int64_t j = 0;
        float sum = 0.0F;
        take_best(rule.per_token, scratch.scores, scratch.allowed, experts, [&](std::int64_t e) {
          chosen[j] = static_cast<std::int32_t>(e);
          weights[j] = router_score(rule, logsumexp, logits[e]);
          sum += weights[j++];
        });
        const float factor = router_weight_factor(rule, sum);
        for (j = 0; j < rule.per_token; ++j) {
          weights[j] *= factor;
        }
      }
    });
  });
}

// A task a piece of a sequence, whose tokens are added up in order.
void CpuOps::measure_experts(const ExpertLoad& load, Stream& stream) {
  const RouterSizes sizes = expect_load(load);
  stream.run([=, this, experts = sizes.experts, sequence = sizes.piece] {
    const std::int64_t per_token = load.rule.per_token;
    const auto lease = scratch_.lease(threads_ * experts * size_of(DType::kF32));
    parallel_for(threads_, as_matrix(load.counts_BE).rows, [&](std::int64_t b, int worker) {
      auto* const counts = pointer<std::int32_t>(load.counts_BE) + b * experts;
      const auto* const chosen = pointer<std::int32_t>(load.chosen_NK) + b * sequence * per_token;
      std::fill_n(counts, experts, 0);
      for (std::int64_t slot = 0; slot < sequence * per_token; ++slot) {
        ++counts[chosen[slot]];
      }
      if (load.balance_BE.empty()) {
        return;
      }
      float* const shares = lease.as<float>() + worker * experts;
      std::fill_n(shares, experts, 0.0F);
      for (std::int64_t n = b * sequence; n < (b + 1) * sequence; ++n) {
        const float* const logits = pointer<float>(load.logits_NE) + n * experts;
        const float logsumexp = pointer<float>(load.logsumexp_N)[n];
        for (std::int64_t e = 0; e < experts; ++e) {
          shares[e] += router_share(load.rule, logsumexp, logits[e]);
        }
      }
      const float length = static_cast<float>(sizes.length);
      const ConstTensor of_ranks =
          load.ranks_counts_BE.empty() ? ConstTensor(load.counts_BE) : load.ranks_counts_BE;
      const SequenceCounts whole(sizes.counted, experts, pointer<std::int32_t>(of_ranks), b);
      for (std::int64_t e = 0; e < experts; ++e) {
        const auto count = static_cast<float>(whole.of(e));
        pointer<float>(load.balance_BE)[b * experts + e] =
            static_cast<float>(experts) * (count / length) * (shares[e] / length);
      }
    });
  });
}

void CpuOps::choose_experts_backward(const ExpertChoiceBackward& back, Stream& stream) {
  const RouterSizes sizes = expect_choice_backward(back);
  stream.run([=, this, tokens = sizes.tokens, experts = sizes.experts] {
    const RouterRule& rule = back.rule;
    const std::int64_t pieces = (tokens + kTokensOfPiece - 1) / kTokensOfPiece;
    const auto lease = scratch_.lease(threads_ * experts * size_of(DType::kF32));
    // f = counts / T, and P is the mean of T shares.
    const float length = static_cast<float>(sizes.length);
    const float share_scale = back.balance_scale * static_cast<float>(experts) / (length * length);
    parallel_for(threads_, pieces, [&](std::int64_t piece, int worker) {
      float* const d_scores = lease.as<float>() + worker * experts;
      std::fill_n(d_scores, experts, 0.0F);
      const std::int64_t begin = piece * kTokensOfPiece;
      for (std::int64_t n = begin; n < std::min(begin + kTokensOfPiece, tokens); ++n) {
        const float* const logits = pointer<float>(back.logits_NE) + n * experts;
        const auto* const chosen = pointer<std::int32_t>(back.chosen_NK) + n * rule.per_token;
        const float* const weights = pointer<float>(back.weights_NK) + n * rule.per_token;
        const float* const d_weights = pointer<float>(back.d_weights_NK) + n * rule.per_token;
        RouterRowGradient row{.logsumexp = pointer<float>(back.logsumexp_N)[n],
                              .chosen_sum = 0.0F,
                              .balance_mean = 0.0F,
                              .d_logsumexp = 0.0F};
        row.d_logsumexp = 2.0F * back.z_scale * row.logsumexp;
        float score_sum = 0.0F;
        float weighted_sum = 0.0F;
        for (std::int64_t j = 0; j < rule.per_token; ++j) {
          score_sum += router_score(rule, row.logsumexp, logits[chosen[j]]);
          weighted_sum += d_weights[j] * weights[j];
        }
        const float factor = router_weight_factor(rule, score_sum);
        for (std::int64_t j = 0; j < rule.per_token; ++j) {
          const float d = router_score_gradient(rule, factor, weighted_sum, d_weights[j]);
          d_scores[chosen[j]] = d;
          row.chosen_sum += router_score(rule, row.logsumexp, logits[chosen[j]]) * d;
        }
        const SequenceCounts counts(sizes.counted, experts, pointer<std::int32_t>(back.counts_BE),
                                    n / sizes.piece);
        const auto d_share = [&](std::int64_t e) {
          return share_scale * static_cast<float>(counts.of(e));
        };
        for (std::int64_t e = 0; e < experts; ++e) {
          row.balance_mean += router_share(rule, row.logsumexp, logits[e]) * d_share(e);
        }
        with_loops(loops_, back.d_logits_NE.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
          for (std::int64_t e = 0; e < experts; ++e) {
            d_scores[e] = router_logit_gradient(rule, row, logits[e], d_scores[e], d_share(e));
          }
          T* const d_logits = pointer<T>(back.d_logits_NE) + n * experts;
          if constexpr (std::is_same_v<T, float>) {
            std::copy_n(d_scores, experts, d_logits);
          } else if constexpr (std::is_same_v<T, BF16>) {
            loops_.f32.cast_to_bf16(d_scores, d_logits, experts);
          } else {
            loops_.f32.cast_to_f16(d_scores, d_logits, experts);
          }
          static_cast<void>(loops);
        });
        std::fill_n(d_scores, experts, 0.0F);
      }
    });
  });
}

// First the rows of each expert and sequence are counted, then slots are put in their places: two
// passes over N · K numbers, in one thread.
void CpuOps::order_by_expert(const ExpertOrder& order, Stream& stream) {
  const auto [slots, per_token, experts, sequences] = expect_order(order);
  stream.run([=, this, slots = slots, experts = experts, sequences = sequences] {
    const auto lease = scratch_.lease(2 * experts * size_of(DType::kI32));
    auto* const next = lease.as<std::int32_t>();  // row of each expert
    auto* const taken = next + experts;           // of the sequence
    const auto* const counts = pointer<std::int32_t>(order.counts_BE);
    const auto most = [&](std::int32_t count) {
      return order.capacity == 0 || count < order.capacity
                 ? count
                 : static_cast<std::int32_t>(order.capacity);
    };
    std::int32_t first = 0;
    for (std::int64_t e = 0; e < experts; ++e) {
      std::int32_t rows = 0;
      for (std::int64_t b = 0; b < sequences; ++b) {
        rows += most(counts[b * experts + e]);
      }
      pointer<std::int32_t>(order.rows_E)[e] = rows;
      next[e] = first;
      first += rows;
    }
    const auto* const chosen = pointer<std::int32_t>(order.chosen_NK);
    const std::int64_t slots_of_sequence = sequences == 0 ? 0 : slots / sequences;
    for (std::int64_t b = 0; b < sequences; ++b) {
      std::fill_n(taken, experts, 0);
      for (std::int64_t slot = b * slots_of_sequence; slot < (b + 1) * slots_of_sequence; ++slot) {
        const std::int32_t e = chosen[slot];
        const bool takes = taken[e] < most(counts[b * experts + e]);
        std::int32_t& place = pointer<std::int32_t>(order.places_NK)[slot];
        place = takes ? next[e]++ : -1;
        ++taken[e];
        if (takes) {
          pointer<std::int32_t>(order.slots_NK)[place] = static_cast<std::int32_t>(slot);
        }
      }
    }
  });
}

}  // namespace dstrain
