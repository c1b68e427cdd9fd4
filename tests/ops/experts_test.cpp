// Mixtures of experts against fp64: how tokens choose experts, the losses that keep experts busy,
// the order of rows, and products with a matrix for each expert; gradients against finite
// differences.
//
// N tokens (B sequences × T positions), E experts, K chosen of each token, C width, F of an expert
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include <catch2/catch.hpp>

#include "kernels/routing.h"
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

double logsumexp_of(const double* row, std::int64_t experts) {
  const double largest = *std::max_element(row, row + experts);
  return largest + std::log(std::accumulate(row, row + experts, 0.0, [&](double sum, double x) {
           return sum + std::exp(x - largest);
         }));
}

Values scores_of(const Case& c, const Values& logits) {
  Values scores;
  for (std::int64_t n = 0; n < c.tokens(); ++n) {
    const double* const row = logits.data() + n * c.experts;
    const double logsumexp = logsumexp_of(row, c.experts);
    for (std::int64_t e = 0; e < c.experts; ++e) {
      scores.push_back(c.rule.sigmoid ? 1.0 / (1.0 + std::exp(-row[e]))
                                      : std::exp(row[e] - logsumexp));
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
    const double logsumexp = logsumexp_of(row, c.experts);
    for (std::int64_t e = 0; e < c.experts; ++e) {
      const auto at = static_cast<std::size_t>(n / c.sequence * c.experts + e);
      balance[at] += static_cast<double>(c.experts) * counts[at] / length *
                     std::exp(row[e] - logsumexp) / length;
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
        logsumexp.push_back(logsumexp_of(logits.data() + n * c.experts, c.experts));
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
             z_scale * std::pow(logsumexp_of(row.data(), c.experts), 2.0);
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
        const Tensor counts_BE = counts_on(lab, c, routed, {});
        const Tensor d_logits = lab.unset(dtype, {c.tokens(), c.experts});
        lab.ops().choose_experts_backward(
            {.rule = c.rule,
             .logits_NE = routed.logits,
             .logsumexp_N = routed.logsumexp,
             .chosen_NK = routed.chosen,
             .weights_NK = routed.weights,
             .d_weights_NK = lab.put(d_weights, DType::kF32, {c.tokens(), c.rule.per_token}),
             .counts_BE = counts_BE,
             .balance_scale = static_cast<float>(balance_scale),
             .z_scale = static_cast<float>(z_scale),
             .d_logits_NE = d_logits},
            lab.stream());
        return lab.get(d_logits);
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
               const Tensor d_logits = lab.unset(DType::kF32, {c.tokens(), c.experts});
               lab.ops().choose_experts_backward(
                   {.rule = c.rule,
                    .logits_NE = routed.logits,
                    .logsumexp_N = routed.logsumexp,
                    .chosen_NK = routed.chosen,
                    .weights_NK = routed.weights,
                    .d_weights_NK = lab.put(d_weights, DType::kF32, {c.tokens(), 1}),
                    .counts_BE = counts_on(lab, c, routed, {}),
                    .d_logits_NE = d_logits},
                   lab.stream());
               return {lab.get(d_logits)};
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
        const std::int64_t per_token = part.rule.per_token;
        const Tensor d_logits = lab.unset(DType::kF32, {part.tokens(), experts});
        lab.ops().choose_experts_backward(
            {.rule = part.rule,
             .logits_NE = routed.logits,
             .logsumexp_N = routed.logsumexp,
             .chosen_NK = routed.chosen,
             .weights_NK = routed.weights,
             .d_weights_NK = lab.put(rows_of(d_weights, rows, per_token), DType::kF32,
                                     {part.tokens(), per_token}),
             .counts_BE = of_ranks,
             .sequences = sequences,
             .balance_scale = static_cast<float>(kBalance),
             .z_scale = 0.0F,
             .d_logits_NE = d_logits},
            lab.stream());
        results.push_back(lab.get(d_logits));
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

namespace {

// Of 6 tokens with 2 choices; slots 3 and 10 were dropped, and expert 1 has no rows.
const Ids kSlots = {0, 5, 6, 1, 2, 4, 8, 11, 7, 9};
const Ids kRows = {3, 0, 5, 2};
constexpr std::int64_t kTokens = 6;
constexpr std::int64_t kPerToken = 2;
const auto kM = static_cast<std::int64_t>(kSlots.size());
constexpr std::int64_t kE = 4;

Ids places_of_slots() {
  Ids places(kTokens * kPerToken, -1);
  for (std::size_t m = 0; m < kSlots.size(); ++m) {
    places[static_cast<std::size_t>(kSlots[m])] = static_cast<std::int32_t>(m);
  }
  return places;
}

Ids expert_of_slots() {
  Ids chosen(kTokens * kPerToken, 1);
  std::size_t m = 0;
  for (std::size_t e = 0; e < kRows.size(); ++e) {
    for (std::int32_t row = 0; row < kRows[e]; ++row) {
      chosen[static_cast<std::size_t>(kSlots[m++])] = static_cast<std::int32_t>(e);
    }
  }
  return chosen;
}

}  // namespace

TEST_CASE("rows of experts are gathered and added up, with weights and without", "[ops][experts]") {
  for (const DType dtype : kComputeDtypes) {
    for (const std::int64_t width : {16, 13}) {
      CAPTURE(name_of(dtype), width);
      const Values x = rounded_to(dtype, random_values(kTokens * width, 1));
      const Values y = rounded_to(dtype, random_values(kM * width, 2));
      const Values weights = rounded_to(DType::kF32, random_values(kTokens * kPerToken, 3));
      Values gathered;
      Values weighted;
      for (const std::int32_t slot : kSlots) {
        for (std::int64_t i = 0; i < width; ++i) {
          gathered.push_back(x[static_cast<std::size_t>(slot / kPerToken * width + i)]);
          weighted.push_back(gathered.back() * weights[static_cast<std::size_t>(slot)]);
        }
      }
      Values summed(x.size());
      Values added = x;
      for (std::size_t m = 0; m < kSlots.size(); ++m) {
        for (std::int64_t i = 0; i < width; ++i) {
          const auto to = static_cast<std::size_t>(kSlots[m] / kPerToken * width + i);
          const double value = y[m * static_cast<std::size_t>(width) + static_cast<std::size_t>(i)];
          summed[to] += value * weights[static_cast<std::size_t>(kSlots[m])];
          added[to] += value;
        }
      }
      const double relative = relative_error_of(dtype);
      const double absolute = 1e-6 + absolute_error_of(dtype);
      conforms({{"gathered", gathered, 0.0, 0.0},
                {"weighted", weighted, relative, absolute},
                {"summed", summed, relative, absolute},
                {"added", added, relative, absolute}},
               [&](Lab& lab) -> std::vector<Values> {
                 const Tensor x_NC = lab.put(x, dtype, {kTokens, width});
                 const Tensor y_MC = lab.put(y, dtype, {kM, width});
                 const Tensor w = lab.put(weights, DType::kF32, {kTokens, kPerToken});
                 const Tensor slots = lab.put_ids(kSlots);
                 const Tensor places = lab.put_ids(places_of_slots()).view({kTokens, kPerToken});
                 const Tensor plain = lab.unset(dtype, {kM, width});
                 const Tensor times = lab.unset(dtype, {kM, width});
                 const Tensor sum = lab.unset(dtype, {kTokens, width});
                 lab.ops().gather_rows(x_NC, slots, kPerToken, {}, plain, lab.stream());
                 lab.ops().gather_rows(x_NC, slots, kPerToken, w, times, lab.stream());
                 lab.ops().sum_rows(y_MC, places, w, sum, Write::kOverwrite, lab.stream());
                 lab.ops().sum_rows(y_MC, places, {}, x_NC, Write::kAdd, lab.stream());
                 return {lab.get(plain), lab.get(times), lab.get(sum), lab.get(x_NC)};
               });
    }
  }
}

TEST_CASE("weights have the gradients of rows, and of the biases behind them", "[ops][experts]") {
  constexpr std::int64_t kF = 21;
  constexpr std::int64_t kC = 13;
  for (const DType dtype : kComputeDtypes) {
    CAPTURE(name_of(dtype));
    const Values row = rounded_to(dtype, random_values(kM * kF, 1));
    const Values d_row = rounded_to(dtype, random_values(kM * kF, 2));
    const Values dy = rounded_to(dtype, random_values(kM * kC, 3));
    const Values bias = rounded_to(dtype, random_values(kE * kC, 4));
    const Values weights = rounded_to(DType::kF32, random_values(kTokens * kPerToken, 5));
    const Ids chosen = expert_of_slots();
    Values plain(weights.size(), 99.0);
    Values biased = plain;
    Values scaled;
    for (std::size_t m = 0; m < kSlots.size(); ++m) {
      const auto slot = static_cast<std::size_t>(kSlots[m]);
      plain[slot] = std::inner_product(row.begin() + static_cast<std::int64_t>(m) * kF,
                                       row.begin() + static_cast<std::int64_t>(m + 1) * kF,
                                       d_row.begin() + static_cast<std::int64_t>(m) * kF, 0.0);
      biased[slot] = std::inner_product(
          bias.begin() + chosen[slot] * kC, bias.begin() + (chosen[slot] + 1) * kC,
          dy.begin() + static_cast<std::int64_t>(m) * kC, plain[slot]);
      for (std::int64_t i = 0; i < kF; ++i) {
        scaled.push_back(d_row[m * kF + static_cast<std::size_t>(i)] * weights[slot]);
      }
    }
    conforms({{"d_weights", plain, 0.0, 1e-5},
              {"d_weights with biases", biased, 0.0, 1e-5},
              {"d_row", scaled, relative_error_of(dtype), absolute_error_of(dtype)}},
             [&](Lab& lab) -> std::vector<Values> {
               const Shape slots{kTokens, kPerToken};
               std::vector<Values> results;
               for (const bool has_bias : {false, true}) {
                 const Tensor d = lab.put(d_row, dtype, {kM, kF});
                 const Tensor d_weights = lab.unset(DType::kF32, slots);
                 lab.ops().weighted_rows_backward(
                     {.slots_M = lab.put_ids(kSlots),
                      .weights_NK = lab.put(weights, DType::kF32, slots),
                      .row_MF = lab.put(row, dtype, {kM, kF}),
                      .d_row_MF = d,
                      .dy_MC = lab.put(dy, dtype, {kM, kC}),
                      .bias_EC = has_bias ? lab.put(bias, dtype, {kE, kC}) : ConstTensor{},
                      .chosen_NK = lab.put_ids(chosen).view(slots),
                      .d_weights_NK = d_weights},
                     lab.stream());
                 results.push_back(lab.get(d_weights));
                 if (has_bias) results.push_back(lab.get(d));
               }
               return results;
             });
  }
}

TEST_CASE("each expert multiplies its own rows, and one without rows has gradients of zero",
          "[ops][experts]") {
  struct Sizes {
    Ids rows;
    std::int64_t inputs;
    std::int64_t outputs;
  };
  for (const DType dtype : kComputeDtypes) {
    for (const Sizes& s : {Sizes{{3, 0, 5, 2}, 16, 24}, Sizes{{0, 1, 0, 0, 7}, 13, 9},
                           Sizes{{150, 17, 0, 331}, 64, 96}, Sizes{{0, 0}, 8, 8}}) {
      const auto experts = static_cast<std::int64_t>(s.rows.size());
      const std::int64_t m = std::accumulate(s.rows.begin(), s.rows.end(), std::int64_t{0});
      CAPTURE(name_of(dtype), m, s.inputs, s.outputs);
      const Values x = rounded_to(dtype, random_values(m * s.inputs, 1));
      const Values w = rounded_to(dtype, random_values(experts * s.outputs * s.inputs, 2));
      const Values bias = rounded_to(dtype, random_values(experts * s.outputs, 3));
      const Values dy = rounded_to(dtype, random_values(m * s.outputs, 4));
      Values y(static_cast<std::size_t>(m * s.outputs));
      Values dx(x.size());
      Values dw(w.size());
      Values db(bias.size());
      std::int64_t row = 0;
      for (std::int64_t e = 0; e < experts; ++e) {
        for (std::int32_t k = 0; k < s.rows[static_cast<std::size_t>(e)]; ++k, ++row) {
          for (std::int64_t o = 0; o < s.outputs; ++o) {
            const auto out = static_cast<std::size_t>(row * s.outputs + o);
            y[out] = bias[static_cast<std::size_t>(e * s.outputs + o)];
            db[static_cast<std::size_t>(e * s.outputs + o)] += dy[out];
            for (std::int64_t i = 0; i < s.inputs; ++i) {
              const auto in = static_cast<std::size_t>(row * s.inputs + i);
              const auto of = static_cast<std::size_t>((e * s.outputs + o) * s.inputs + i);
              y[out] += x[in] * w[of];
              dx[in] += dy[out] * w[of];
              dw[of] += dy[out] * x[in];
            }
          }
        }
      }
      Values twice = dw;
      for (double& value : twice) {
        value *= 2.0;
      }
      const double relative = relative_error_of(dtype);
      const double sums = 2e-5 + absolute_error_of(dtype);
      // cuBLASLt cannot add biases that begin anywhere: the product is rounded before they are
      // added.
      conforms({{"y", y, 2.0 * relative, sums + (dtype == DType::kF32 ? 0.0 : relative)},
                {"dx", dx, relative, sums},
                {"dw", dw, 1e-5, 1e-4},
                {"dw of two micro-batches", twice, 1e-5, 2e-4},
                {"dbias", db, 1e-5, 1e-4}},
               [&](Lab& lab) -> std::vector<Values> {
                 const Tensor x_MI = lab.put(x, dtype, {m, s.inputs});
                 const Tensor w_EOI = lab.put(w, dtype, {experts, s.outputs, s.inputs});
                 const Tensor dy_MO = lab.put(dy, dtype, {m, s.outputs});
                 const Tensor y_MO = lab.unset(dtype, {m, s.outputs});
                 const Tensor dx_MI = lab.unset(dtype, {m, s.inputs});
                 const Tensor dw_EOI = lab.unset(DType::kF32, w_EOI.shape());
                 const Tensor db_EO = lab.unset(DType::kF32, {experts, s.outputs});
                 Ops& ops = lab.ops();
                 ops.grouped_forward(x_MI, w_EOI, lab.put(bias, dtype, {experts, s.outputs}),
                                     s.rows, y_MO, lab.stream());
                 ops.grouped_backward_input(dy_MO, w_EOI, s.rows, dx_MI, lab.stream());
                 ops.grouped_backward_weight(dy_MO, x_MI, s.rows, dw_EOI, Write::kOverwrite,
                                             lab.stream());
                 ops.grouped_backward_bias(dy_MO, s.rows, db_EO, Write::kOverwrite, lab.stream());
                 const Values of_one = lab.get(dw_EOI);
                 ops.grouped_backward_weight(dy_MO, x_MI, s.rows, dw_EOI, Write::kAdd,
                                             lab.stream());
                 return {lab.get(y_MO), lab.get(dx_MI), of_one, lab.get(dw_EOI), lab.get(db_EO)};
               });
    }
  }
}

TEST_CASE("rows that are not those of the experts are refused", "[ops][experts]") {
  for (const BackendUnderTest& backend : backends_under_test()) {
    Lab lab(backend.make(1));
    const Tensor x = lab.unset(DType::kF32, {3, 8});
    const Tensor w = lab.unset(DType::kF32, {2, 8, 8});
    for (const Ids& rows : {Ids{1, 1}, Ids{3, 1}, Ids{4, -1}, Ids{3}}) {
      CHECK_THROWS(lab.ops().grouped_forward(x, w, {}, rows, x, lab.stream()));
    }
  }
}

}  // namespace dstrain::test
