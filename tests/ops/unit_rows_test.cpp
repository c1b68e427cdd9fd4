// A head whose rows count with length one against fp64: logits, and the gradients of both operands,
// which are finite differences of the fp64 forward.
//
// N tokens, V vocabulary, C width
#include <cmath>
#include <numeric>

#include <catch2/catch.hpp>

#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

struct Case {
  std::int64_t tokens;
  std::int64_t columns;
  std::int64_t width;
};
// Sizes that vectors and packs of eight fit, and those that they do not.
const Case kCases[] = {{1, 8, 16}, {7, 24, 40}, {3, 21, 13}, {33, 5, 70}};

/// Logits of h_NC with the rows of w_VC divided by their lengths.
Values logits_of(const Case& c, const Values& h, const Values& w) {
  Values logits;
  for (std::int64_t n = 0; n < c.tokens; ++n) {
    for (std::int64_t v = 0; v < c.columns; ++v) {
      const auto h_row = h.begin() + n * c.width;
      const auto w_row = w.begin() + v * c.width;
      const double squares = std::inner_product(w_row, w_row + c.width, w_row, 0.0);
      logits.push_back(std::inner_product(w_row, w_row + c.width, h_row, 0.0) / std::sqrt(squares));
    }
  }
  return logits;
}

}  // namespace

TEST_CASE("a head of unit rows and its gradients are fp64's", "[ops][head]") {
  for (const DType dtype : kComputeDtypes) {
    for (const Case& c : kCases) {
      CAPTURE(name_of(dtype), c.tokens, c.columns, c.width);
      const Values h = rounded_to(dtype, random_values(c.tokens * c.width, 1));
      const Values w = rounded_to(dtype, random_values(c.columns * c.width, 2, 3.0));
      const Values d_logits = rounded_to(dtype, random_values(c.tokens * c.columns, 3));
      const auto weighted = [&](const Values& h_moved, const Values& w_moved) {
        const Values logits = logits_of(c, h_moved, w_moved);
        return std::inner_product(logits.begin(), logits.end(), d_logits.begin(), 0.0);
      };
      const Values dh =
          finite_difference([&](const Values& moved) { return weighted(moved, w); }, h);
      const Values dw =
          finite_difference([&](const Values& moved) { return weighted(h, moved); }, w);
      Values twice = dw;
      for (double& value : twice) {
        value *= 2.0;
      }
      // What lies along the rows is taken out of sums of up to 33 tokens; logits and their
      // gradients are rounded once more before they are used, each by half a unit.
      const double relative = relative_error_of(dtype);
      const double sums = 1e-5 + 8.0 * (dtype == DType::kF32 ? 0.0 : relative);
      conforms({{"logits", logits_of(c, h, w), 2.0 * relative, sums},
                {"dh", dh, relative, sums},
                {"dw", dw, relative, sums},
                {"dw of two micro-batches", twice, relative, 2.0 * sums}},
               [&](Lab& lab) -> std::vector<Values> {
                 const Tensor h_NC = lab.put(h, dtype, {c.tokens, c.width});
                 const Tensor w_VC = lab.put(w, dtype, {c.columns, c.width});
                 const Tensor squares_V = lab.unset(DType::kF32, {c.columns});
                 lab.ops().group_squares(w_VC, c.width, squares_V, lab.stream());
                 const Tensor logits = lab.unset(dtype, {c.tokens, c.columns});
                 lab.ops().linear_forward(h_NC, w_VC, {}, logits, lab.stream());
                 lab.ops().divide_columns(logits, squares_V, lab.stream());
                 const Tensor d = lab.put(d_logits, dtype, {c.tokens, c.columns});
                 lab.ops().divide_columns(d, squares_V, lab.stream());
                 const Tensor dh_NC = lab.unset(dtype, {c.tokens, c.width});
                 const Tensor dw_VC = lab.unset(DType::kF32, {c.columns, c.width});
                 lab.ops().linear_backward_input(d, w_VC, dh_NC, lab.stream());
                 lab.ops().linear_backward_weight(d, h_NC, dw_VC, Write::kOverwrite, lab.stream());
                 lab.ops().project_rows(w_VC, squares_V, dw_VC, lab.stream());
                 const Values of_one = lab.get(dw_VC);
                 lab.ops().linear_backward_weight(d, h_NC, dw_VC, Write::kAdd, lab.stream());
                 lab.ops().project_rows(w_VC, squares_V, dw_VC, lab.stream());
                 return {lab.get(logits), lab.get(dh_NC), of_one, lab.get(dw_VC)};
               });
    }
  }
}

TEST_CASE("a row of zeros, as padding of a vocabulary is, makes no number that is none",
          "[ops][head]") {
  conforms({{"logits", {0.0, 2.0}, 1e-6, 0.0}, {"dw", {0.0, 0.0, 0.0, 5.0}, 1e-6, 1e-6}},
           [](Lab& lab) -> std::vector<Values> {
             const Tensor w_VC = lab.put({0.0, 0.0, 3.0, 0.0}, DType::kF32, {2, 2});
             const Tensor squares_V = lab.unset(DType::kF32, {2});
             lab.ops().group_squares(w_VC, 2, squares_V, lab.stream());
             const Tensor logits = lab.put({0.0, 6.0}, DType::kF32, {1, 2});
             lab.ops().divide_columns(logits, squares_V, lab.stream());
             const Tensor dw_VC = lab.put({0.0, 0.0, 4.0, 5.0}, DType::kF32, {2, 2});
             lab.ops().project_rows(w_VC, squares_V, dw_VC, lab.stream());
             return {lab.get(logits), lab.get(dw_VC)};
           });
}

}  // namespace dstrain::test
