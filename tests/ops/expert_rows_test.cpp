// Rows of experts against fp64: gathered, added up, and multiplied with a matrix for each expert.
//
// N tokens, K chosen experts of each, M rows, E experts, C width, F of an expert
#include <numeric>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/routing.h"
#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

using Ids = std::vector<std::int32_t>;

// Six tokens have two choices each; slots 3 and 10 were dropped, and expert 1 has no rows.
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
