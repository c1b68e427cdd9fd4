// Mixtures of experts against fp64: how tokens choose experts, the losses that keep experts busy,
// and the order of rows; gradients against finite differences.
//
// N tokens (B sequences × T positions), E experts, K chosen of each token
#include "kernels/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

using Ids = std::vector<std::int32_t>;

struct Case {
  std::int64_t sequences;
  std::int64_t sequence;
  std::int64_t experts;
  RouterRule rule;
  [[nodiscard]] std::int64_t tokens() const { return sequences * sequence; }
  [[nodiscard]] std::int64_t slots() const { return tokens() * rule.per_token; }
};

const Case kCases[] = {
    {2, 5, 4, {.per_token = 2}},
    {1, 7, 4, {.per_token = 2, .normalised = true}},
    {3, 3, 7, {.per_token = 7, .normalised = true, .scale = 2.5F}},
    {2, 33, 40, {.per_token = 6, .scale = 16.0F, .groups = 8, .chosen_groups = 3}},
    {1, 6, 64, {.per_token = 8, .sigmoid = true, .normalised = true, .scale = 2.5F}},
    {2,
     4,
     16,
     {.per_token = 3,
      .sigmoid = true,
      .normalised = true,
      .scale = 1.5F,
      .groups = 4,
      .chosen_groups = 2,
      .group_by_two = true}},
    {1, 1, 1, {.per_token = 1, .normalised = true}},
    {2, 9, 5, {.per_token = 1, .normalised = true, .scale = 2.5F}},
};

double sigmoid_of(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

/// log Σ exp(logit) where scores are a softmax, log Σ σ(logit) where they are sigmoids.
double logsumexp_of(const RouterRule& rule, const double* row, std::int64_t experts) {
  const double largest = rule.sigmoid ? 0.0 : *std::max_element(row, row + experts);
  return largest + std::log(std::accumulate(row, row + experts, 0.0, [&](double sum, double x) {
           return sum + (rule.sigmoid ? sigmoid_of(x) : std::exp(x - largest));
         }));
}

Values scores_of(const Case& c, const Values& logits) {
  Values scores;
  for (std::int64_t n = 0; n < c.tokens(); ++n) {
    const double* const row = logits.data() + n * c.experts;
    const double logsumexp = logsumexp_of(c.rule, row, c.experts);
    for (std::int64_t e = 0; e < c.experts; ++e) {
      scores.push_back(c.rule.sigmoid ? sigmoid_of(row[e]) : std::exp(row[e] - logsumexp));
    }
  }
  return scores;
}

/// By sorting, as a reader of the papers would.
Ids chosen_of(const Case& c, const Values& logits, const Values& bias) {
  const Values scores = scores_of(c, logits);
  Ids all;
  for (std::int64_t n = 0; n < c.tokens(); ++n) {
    Values by(scores.begin() + n * c.experts, scores.begin() + (n + 1) * c.experts);
    for (std::size_t e = 0; e < by.size() && !bias.empty(); ++e) {
      by[e] += bias[e];
    }
    const std::int64_t size = c.experts / c.rule.groups;
    Ids groups(static_cast<std::size_t>(c.rule.groups));
    std::iota(groups.begin(), groups.end(), 0);
    const auto group_score = [&](std::int32_t g) {
      Values of(by.begin() + g * size, by.begin() + (g + 1) * size);
      std::sort(of.rbegin(), of.rend());
      return of[0] + (c.rule.group_by_two && of.size() > 1 ? of[1] : 0.0);
    };
    std::stable_sort(groups.begin(), groups.end(), [&](std::int32_t a, std::int32_t b) {
      return group_score(a) > group_score(b);
    });
    groups.resize(static_cast<std::size_t>(c.rule.chosen_groups));
    std::sort(groups.begin(), groups.end());
    Ids experts;
    for (const std::int32_t g : groups) {
      for (std::int64_t e = g * size; e < (g + 1) * size; ++e) {
        experts.push_back(static_cast<std::int32_t>(e));
      }
    }
    std::stable_sort(experts.begin(), experts.end(), [&](std::int32_t a, std::int32_t b) {
      return by[static_cast<std::size_t>(a)] > by[static_cast<std::size_t>(b)];
    });
    all.insert(all.end(), experts.begin(), experts.begin() + c.rule.per_token);
  }
  return all;
}

Values weights_of(const Case& c, const Values& logits, const Ids& chosen) {
  const Values scores = scores_of(c, logits);
  Values weights;
  for (std::int64_t n = 0; n < c.tokens(); ++n) {
    double sum = 0.0;
    for (std::int64_t slot = n * c.rule.per_token; slot < (n + 1) * c.rule.per_token; ++slot) {
      weights.push_back(
          scores[static_cast<std::size_t>(n * c.experts + chosen[static_cast<std::size_t>(slot)])]);
      sum += weights.back();
    }
    for (std::int64_t j = 1; j <= c.rule.per_token; ++j) {
      weights[weights.size() - static_cast<std::size_t>(j)] *=
          c.rule.scale / (c.rule.normalised ? sum : 1.0);
    }
  }
  return weights;
}

Values counts_of(const Case& c, const Ids& chosen) {
  Values counts(static_cast<std::size_t>(c.sequences * c.experts));
  for (std::size_t slot = 0; slot < chosen.size(); ++slot) {
    const auto b = static_cast<std::int64_t>(slot) / (c.sequence * c.rule.per_token);
    counts[static_cast<std::size_t>(b * c.experts + chosen[slot])] += 1.0;
  }
  return counts;
}

/// E · f · P of each expert and sequence.
Values balance_of(const Case& c, const Values& logits, const Values& counts) {
  Values balance(counts.size());
  const auto length = static_cast<double>(c.sequence);
  for (std::int64_t n = 0; n < c.tokens(); ++n) {
    const double* const row = logits.data() + n * c.experts;
    const double logsumexp = logsumexp_of(c.rule, row, c.experts);
    for (std::int64_t e = 0; e < c.experts; ++e) {
      const double score = c.rule.sigmoid ? sigmoid_of(row[e]) : std::exp(row[e]);
      const auto at = static_cast<std::size_t>(n / c.sequence * c.experts + e);
      balance[at] += static_cast<double>(c.experts) * counts[at] / length * score /
                     std::exp(logsumexp) / length;
    }
  }
  return balance;
}

/// Numbers, no two of a row so close that rounding could choose between them.
Values logits_for(const Case& c, std::uint64_t seed) {
  Values logits = random_values(c.tokens() * c.experts, seed, 3.0);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = std::round(logits[i] * 8.0) / 8.0 +
                static_cast<double>(i % static_cast<std::size_t>(c.experts)) / 1024.0;
  }
  return rounded_to(DType::kF32, logits);
}

Values of_ids(const Ids& ids) {
  return {ids.begin(), ids.end()};
}

struct Routed {
  Tensor logits, logsumexp, chosen, weights;
};
Routed choose(Lab& lab, const Case& c, const Values& logits, const Values& bias) {
  const Shape slots{c.tokens(), c.rule.per_token};
  Routed routed{.logits = lab.put(logits, DType::kF32, {c.tokens(), c.experts}),
                .logsumexp = lab.unset(DType::kF32, {c.tokens()}),
                .chosen = lab.put_ids(Ids(static_cast<std::size_t>(c.slots()), -7)).view(slots),
                .weights = lab.unset(DType::kF32, slots)};
  lab.ops().choose_experts(
      {.rule = c.rule,
       .logits_NE = routed.logits,
       .bias_E = bias.empty() ? ConstTensor{} : lab.put(bias, DType::kF32, {c.experts}),
       .logsumexp_N = routed.logsumexp,
       .chosen_NK = routed.chosen,
       .weights_NK = routed.weights},
      lab.stream());
  return routed;
}

Tensor counts_on(Lab& lab, const Case& c, const Routed& routed, Tensor balance) {
  const Tensor counts = lab.put_ids(Ids(static_cast<std::size_t>(c.sequences * c.experts), -7))
                            .view({c.sequences, c.experts});
  lab.ops().measure_experts({.rule = c.rule,
                             .logits_NE = routed.logits,
                             .logsumexp_N = routed.logsumexp,
                             .chosen_NK = routed.chosen,
                             .counts_BE = counts,
                             .balance_BE = balance},
                            lab.stream());
  return counts;
}

struct LossScales {
  double balance = 0.0;
  double z = 0.0;
};
/// `counts`: of whole sequences, which lie as `sequences` says.
Values logit_gradient_on(Lab& lab,
                         const Case& c,
                         const Routed& routed,
                         const Values& d_weights,
                         ConstTensor counts,
                         LossScales scales = {},
                         DType dtype = DType::kF32,
                         SequenceChunks sequences = {}) {
  const Tensor d_logits = lab.unset(dtype, {c.tokens(), c.experts});
  lab.ops().choose_experts_backward(
      {.rule = c.rule,
       .logits_NE = routed.logits,
       .logsumexp_N = routed.logsumexp,
       .chosen_NK = routed.chosen,
       .weights_NK = routed.weights,
       .d_weights_NK = lab.put(d_weights, DType::kF32, {c.tokens(), c.rule.per_token}),
       .counts_BE = counts,
       .sequences = sequences,
       .balance_scale = static_cast<float>(scales.balance),
       .z_scale = static_cast<float>(scales.z),
       .d_logits_NE = d_logits},
      lab.stream());
  return lab.get(d_logits);
}

}  // namespace

TEST_CASE("tokens choose the experts of the highest scores, with their weights", "[ops][experts]") {
  for (const Case& c : kCases) {
    for (const bool biased : {false, true}) {
      CAPTURE(c.experts, c.rule.per_token, c.rule.groups, c.rule.sigmoid, biased);
      const Values logits = logits_for(c, 1);
      const Values bias =
          biased ? rounded_to(DType::kF32, random_values(c.experts, 2, 0.5)) : Values{};
      const Ids chosen = chosen_of(c, logits, bias);
      const Values counts = counts_of(c, chosen);
      Values logsumexp;
      for (std::int64_t n = 0; n < c.tokens(); ++n) {
        logsumexp.push_back(logsumexp_of(c.rule, logits.data() + n * c.experts, c.experts));
      }
      conforms({{"chosen", of_ids(chosen), 0.0, 0.0},
                {"weights", weights_of(c, logits, chosen), 1e-5, 0.0},
                {"logsumexp", logsumexp, 1e-6, 1e-6},
                {"counts", counts, 0.0, 0.0},
                {"balance", balance_of(c, logits, counts), 1e-5, 0.0}},
               [&](Lab& lab) -> std::vector<Values> {
                 const Routed routed = choose(lab, c, logits, bias);
                 const Tensor balance = lab.unset(DType::kF32, {c.sequences, c.experts});
                 const Tensor on = counts_on(lab, c, routed, balance);
                 return {lab.get(routed.chosen), lab.get(routed.weights), lab.get(routed.logsumexp),
                         lab.get(on), lab.get(balance)};
               });
    }
  }
}

TEST_CASE("of equal scores the lower expert is chosen, and logits that are no numbers choose too",
          "[ops][experts]") {
  const Case c{1, 5, 4, {.per_token = 2}};
  const double nan = std::nan("");
  const Values logits = {1, 2, 2, 2, 0, 0, 0, 0, nan, nan, nan, nan, 1, nan, 3, 0, 5, 4, 4, 5};
  conforms({{"chosen", {1, 2, 0, 1, 0, 1, 0, 1, 0, 3}, 0.0, 0.0}},
           [&](Lab& lab) -> std::vector<Values> {
             return {lab.get(choose(lab, c, logits, {}).chosen)};
           });
  const Case grouped{1, 2, 4, {.per_token = 2, .groups = 2, .chosen_groups = 1}};
  const Values in_groups = {nan, nan, nan, nan, 1, 3, 3, 2};
  conforms({{"chosen", {0, 1, 1, 0}, 0.0, 0.0}}, [&](Lab& lab) -> std::vector<Values> {
    return {lab.get(choose(lab, grouped, in_groups, {}).chosen)};
  });
}

/// Of balance_scale · Σ balance + z_scale · Σ logsumexp², and through weights. Counts are
/// constants, so that a token's loss depends on no other's logits.
Values gradient_of(const Case& c,
                   const Values& logits,
                   const Values& d_weights,
                   double balance_scale,
                   double z_scale) {
  const Ids chosen = chosen_of(c, logits, {});
  const Values counts = counts_of(c, chosen);
  const Case token{1, 1, c.experts, c.rule};
  Values all;
  for (std::int64_t n = 0; n < c.tokens(); ++n) {
    const std::int64_t k = c.rule.per_token;
    const Ids own(chosen.begin() + n * k, chosen.begin() + (n + 1) * k);
    Values shares(counts.begin() + n / c.sequence * c.experts,
                  counts.begin() + (n / c.sequence + 1) * c.experts);
    for (double& share : shares) {
      share /= static_cast<double>(c.sequence * c.sequence);
    }
    const auto loss = [&](const Values& row) {
      const Values weights = weights_of(token, row, own);
      const Values balance = balance_of(token, row, shares);
      return std::inner_product(
                 weights.begin(), weights.end(), d_weights.begin() + n * k,
                 balance_scale * std::accumulate(balance.begin(), balance.end(), 0.0)) +
             z_scale * std::pow(logsumexp_of(c.rule, row.data(), c.experts), 2.0);
    };
    const Values slope = finite_difference(
        loss, {logits.begin() + n * c.experts, logits.begin() + (n + 1) * c.experts});
    all.insert(all.end(), slope.begin(), slope.end());
  }
  return all;
}

// Automodel issue 1408: an auxiliary loss that is reported, and has no gradient.
TEST_CASE("logits have the gradients of weights, of the auxiliary loss and of the z loss",
          "[ops][experts]") {
  constexpr double kBalance = 0.7;
  constexpr double kZ = 0.05;
  for (const DType dtype : kComputeDtypes) {
    for (const Case& c : kCases) {
      CAPTURE(name_of(dtype), c.experts, c.rule.per_token, c.rule.groups, c.rule.sigmoid);
      const Values logits = logits_for(c, 3);
      const Values d_weights = rounded_to(DType::kF32, random_values(c.slots(), 4));
      const auto gradient = [&](double balance_scale, double z_scale) {
        return gradient_of(c, logits, d_weights, balance_scale, z_scale);
      };
      const double relative = relative_error_of(dtype);
      const double absolute = 2e-6 * c.rule.scale + absolute_error_of(dtype);
      const auto run = [&](Lab& lab, double balance_scale, double z_scale) {
        const Routed routed = choose(lab, c, logits, {});
        return logit_gradient_on(lab, c, routed, d_weights, counts_on(lab, c, routed, {}),
                                 {.balance = balance_scale, .z = z_scale}, dtype);
      };
      conforms({{"d_logits", gradient(0.0, 0.0), relative, absolute},
                {"d_logits with the auxiliary loss", gradient(kBalance, 0.0), relative, absolute},
                {"d_logits with both", gradient(kBalance, kZ), relative, absolute}},
               [&](Lab& lab) -> std::vector<Values> {
                 return {run(lab, 0.0, 0.0), run(lab, kBalance, 0.0), run(lab, kBalance, kZ)};
               });
    }
  }
}

TEST_CASE("a weight that is normalised by itself has no gradient, not even of rounding",
          "[ops][experts]") {
  for (const bool sigmoid : {false, true}) {
    const Case c{4, 25, 6, {.per_token = 1, .sigmoid = sigmoid, .normalised = true, .scale = 2.5F}};
    const Values logits = logits_for(c, 3);
    const Values d_weights = rounded_to(DType::kF32, random_values(c.slots(), 4));
    conforms({{"d_logits", Values(logits.size(), 0.0), 0.0, 0.0}},
             [&](Lab& lab) -> std::vector<Values> {
               const Routed routed = choose(lab, c, logits, {});
               return {logit_gradient_on(lab, c, routed, d_weights, counts_on(lab, c, routed, {}))};
             });
  }
}

/// The rows that rank r of 2 has of a case whose sequences lie in 2 chunks on each: of a sequence's
/// quarters the first and the last, or the two between.
std::vector<std::int64_t> rows_of_rank(const Case& c, std::int64_t rank) {
  std::vector<std::int64_t> rows;
  const std::int64_t quarter = c.sequence / 4;
  for (const std::int64_t at : {rank, 3 - rank}) {
    for (std::int64_t b = 0; b < c.sequences; ++b) {
      for (std::int64_t t = at * quarter; t < (at + 1) * quarter; ++t) {
        rows.push_back(b * c.sequence + t);
      }
    }
  }
  return rows;
}

Values rows_of(const Values& values, const std::vector<std::int64_t>& rows, std::int64_t width) {
  Values of;
  for (const std::int64_t row : rows) {
    of.insert(of.end(), values.begin() + row * width, values.begin() + (row + 1) * width);
  }
  return of;
}

/// How a rank's chunks are counted where its rows are divided among so many neighbours.
SequenceChunks parts_of(const Case& whole, std::int64_t parts) {
  const std::int64_t pieces = parts / std::gcd(whole.sequences * 2, parts);
  return {.chunks = 2, .ranks = 2, .pieces = pieces, .parts = parts};
}

TEST_CASE("the auxiliary loss is of whole sequences where ranks have parts of them",
          "[ops][experts]") {
  constexpr double kBalance = 0.7;
  const Case three{3, 8, 6, {.per_token = 2, .normalised = true}};
  const Case one{1, 16, 40, {.per_token = 3, .sigmoid = true}};
  for (const auto& [whole, parts] :
       {std::pair{three, 1}, {three, 2}, {three, 4}, {one, 1}, {one, 2}, {one, 4}, {one, 8}}) {
    CAPTURE(whole.experts, parts);
    const std::int64_t experts = whole.experts;
    const SequenceChunks chunks = parts_of(whole, parts);
    // The rows that ranks share, and those of one of the neighbours.
    const Case rank_case{whole.sequences * 2 * chunks.pieces, whole.sequence / 4 / chunks.pieces,
                         experts, whole.rule};
    const Case part{rank_case.sequences / parts, rank_case.sequence, experts, whole.rule};
    const auto rows_of_part = [&whole = whole, &part](std::int64_t rank, std::int64_t at) {
      const std::vector<std::int64_t> rows = rows_of_rank(whole, rank);
      return std::vector<std::int64_t>(rows.begin() + at * part.tokens(),
                                       rows.begin() + (at + 1) * part.tokens());
    };
    const Values logits = logits_for(whole, 3);
    const Values d_weights = rounded_to(DType::kF32, random_values(whole.slots(), 4));
    const Values gradient = gradient_of(whole, logits, d_weights, kBalance, 0.0);
    const Values counts = counts_of(whole, chosen_of(whole, logits, {}));
    const Values balance = balance_of(whole, logits, counts);

    // What the ranks' counts add up to: chunk by chunk, which together are the sequence's.
    Ids counted(static_cast<std::size_t>(rank_case.sequences * experts));
    for (const std::int64_t rank : {0, 1}) {
      const Values own = counts_of(
          rank_case, chosen_of(rank_case, rows_of(logits, rows_of_rank(whole, rank), experts), {}));
      std::transform(own.begin(), own.end(), counted.begin(), counted.begin(),
                     [](double of_rank, std::int32_t sum) {
                       return sum + static_cast<std::int32_t>(of_rank);
                     });
    }
    Values expected_balance(static_cast<std::size_t>(experts));
    for (std::size_t i = 0; i < balance.size(); ++i) {
      expected_balance[i % static_cast<std::size_t>(experts)] += balance[i];
    }
    std::vector<Expected> expected{{"balance", expected_balance, 1e-5, 1e-6}};
    for (const std::int64_t rank : {0, 1}) {
      for (std::int64_t at = 0; at < parts; ++at) {
        expected.push_back({"d_logits", rows_of(gradient, rows_of_part(rank, at), experts), 1e-5,
                            2e-6 * whole.rule.scale});
      }
    }
    conforms(expected, [&, parts = parts](Lab& lab) {
      std::vector<Values> results(1, Values(static_cast<std::size_t>(experts)));
      const Tensor of_ranks = lab.put_ids(counted).view({rank_case.sequences, experts});
      const auto add_part = [&](std::int64_t rank, std::int64_t at) {
        SequenceChunks sequences = chunks;
        sequences.part = at;
        const std::vector<std::int64_t> rows = rows_of_part(rank, at);
        const Routed routed = choose(lab, part, rows_of(logits, rows, experts), {});
        const Tensor balance_BE = lab.unset(DType::kF32, {part.sequences, experts});
        lab.ops().measure_experts({.rule = part.rule,
                                   .logits_NE = routed.logits,
                                   .logsumexp_N = routed.logsumexp,
                                   .chosen_NK = routed.chosen,
                                   .counts_BE = counts_on(lab, part, routed, {}),
                                   .balance_BE = balance_BE,
                                   .ranks_counts_BE = of_ranks,
                                   .sequences = sequences},
                                  lab.stream());
        const Values own = lab.get(balance_BE);
        for (std::size_t i = 0; i < own.size(); ++i) {
          results[0][i % static_cast<std::size_t>(experts)] += own[i];
        }
        results.push_back(logit_gradient_on(lab, part, routed,
                                            rows_of(d_weights, rows, part.rule.per_token), of_ranks,
                                            {.balance = kBalance}, DType::kF32, sequences));
      };
      for (const std::int64_t rank : {0, 1}) {
        for (std::int64_t at = 0; at < parts; ++at) {
          add_part(rank, at);
        }
      }
      return results;
    });
  }
}

TEST_CASE("rows are ordered by expert and by token, the first of a sequence up to the capacity",
          "[ops][experts]") {
  for (const Case& c : {kCases[0], kCases[3], Case{2, 700, 5, {.per_token = 2}}}) {
    for (const std::int64_t capacity : {std::int64_t{0}, std::int64_t{1}, std::int64_t{4}}) {
      CAPTURE(c.experts, c.sequence, capacity);
      const Ids chosen = chosen_of(c, logits_for(c, 5), {});
      Values slots;
      Values rows;
      for (std::int32_t e = 0; e < c.experts; ++e) {
        const std::size_t before = slots.size();
        for (std::int64_t b = 0; b < c.sequences; ++b) {
          std::int64_t taken = 0;
          const std::int64_t length = c.sequence * c.rule.per_token;
          for (std::int64_t slot = b * length; slot < (b + 1) * length; ++slot) {
            if (chosen[static_cast<std::size_t>(slot)] == e &&
                (capacity == 0 || taken++ < capacity)) {
              slots.push_back(static_cast<double>(slot));
            }
          }
        }
        rows.push_back(static_cast<double>(slots.size() - before));
      }
      Values places(static_cast<std::size_t>(c.slots()), -1.0);
      for (std::size_t m = 0; m < slots.size(); ++m) {
        places[static_cast<std::size_t>(slots[m])] = static_cast<double>(m);
      }
      const std::int64_t kept = static_cast<std::int64_t>(slots.size());
      conforms({{"rows", rows, 0.0, 0.0}, {"slots", slots, 0.0, 0.0}, {"places", places, 0.0, 0.0}},
               [&](Lab& lab) -> std::vector<Values> {
                 Ids counts;
                 for (const double count : counts_of(c, chosen)) {
                   counts.push_back(static_cast<std::int32_t>(count));
                 }
                 const Shape shape{c.tokens(), c.rule.per_token};
                 const Ids unset(static_cast<std::size_t>(c.slots()), -7);
                 const Tensor rows_E = lab.put_ids(Ids(static_cast<std::size_t>(c.experts), -7));
                 const Tensor slots_NK = lab.put_ids(unset);
                 const Tensor places_NK = lab.put_ids(unset).view(shape);
                 lab.ops().order_by_expert(
                     {.chosen_NK = lab.put_ids(chosen).view(shape),
                      .counts_BE = lab.put_ids(counts).view({c.sequences, c.experts}),
                      .capacity = capacity,
                      .rows_E = rows_E,
                      .slots_NK = slots_NK,
                      .places_NK = places_NK},
                     lab.stream());
                 return {lab.get(rows_E), lab.get(slots_NK.flat(0, kept)), lab.get(places_NK)};
               });
    }
  }
}

}  // namespace dstrain::test
