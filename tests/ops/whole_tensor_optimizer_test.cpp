// The operations of LAMB, which wants the norms of whole tensors, and of Muon, which wants whole
// matrices, against fp64.
#include <algorithm>
#include <cmath>

#include <catch2/catch.hpp>

#include "kernels/math/lamb.h"
#include "kernels/optimizers.h"
#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

/// Around the vector lengths and the pieces that tasks take.
constexpr std::int64_t kSizes[] = {1, 7, 16, 33, (1 << 15) + 5};

}  // namespace

TEST_CASE("lamb moves along Adam's direction, scaled by the ratio of the norms",
          "[ops][optimizer]") {
  for (const bool inside : {false, true}) {
    for (const DType gradient_dtype : kComputeDtypes) {
      for (const std::int64_t n : kSizes) {
        CAPTURE(inside, name_of(gradient_dtype), n);
        const LambStep step{.learning_rate = 0.05F,
                            .epsilon = 1e-3F,
                            .eps_inside_sqrt = inside,
                            .weight_decay = 0.25F,
                            .bias_correction1 = 0.5F,
                            .bias_correction2 = 0.25F,
                            .gradient_scale = 0.5F};
        const Values start = rounded_to(DType::kF32, random_values(n, 1));
        const Values gradient = rounded_to(gradient_dtype, random_values(n, 2, 0.1));
        Values m = rounded_to(DType::kF32, random_values(n, 3, 0.1));
        const Values m_start = m;
        Values v(m.size(), 0.0);
        Values direction(m.size());
        double parameter_squares = 0.0;
        double direction_squares = 0.0;
        for (std::size_t i = 0; i < m.size(); ++i) {
          const double g = 0.5 * gradient[i];
          m[i] = step.beta1 * m[i] + (1.0 - step.beta1) * g;
          v[i] = (1.0 - step.beta2) * g * g;
          const double deviation =
              inside ? std::sqrt(v[i] + step.epsilon) : std::sqrt(v[i]) + step.epsilon;
          direction[i] = m[i] / deviation + 0.25 * start[i];
          parameter_squares += start[i] * start[i];
          direction_squares += direction[i] * direction[i];
        }
        const double ratio =
            std::clamp(std::sqrt(parameter_squares / direction_squares), 0.01, 10.0);
        Values master = start;
        for (std::size_t i = 0; i < m.size(); ++i) {
          master[i] -= 0.05 * std::sqrt(0.25) / 0.5 * ratio * direction[i];
        }
        // The direction is a quotient of f32 moments, off by some 1e-6.
        conforms({{"squares", {parameter_squares, direction_squares}, 1e-5, 0.0},
                  {"m", m, 2e-6, 1e-8},
                  {"v", v, 1e-5, 1e-12},
                  {"master", master, 4e-6, 4e-7},
                  {"parameters", master, relative_error_of(DType::kBF16), 4e-7}},
                 [&](Lab& lab) -> std::vector<Values> {
                   const OptimizerTensors tensors{
                       .gradient = lab.put(gradient, gradient_dtype, {n}),
                       .master = lab.put(start, DType::kF32, {n}),
                       .first_moment = lab.put(m_start, DType::kF32, {n}),
                       .second_moment = lab.put(Values(m.size(), 0.0), DType::kF32, {n}),
                       .parameters = lab.unset(DType::kBF16, {n})};
                   const Tensor squares = lab.unset(DType::kF64, {2});
                   lab.ops().lamb_moments(step, tensors, squares, lab.stream());
                   CHECK(lab.get(tensors.master) == start);
                   lab.ops().lamb_apply(step, tensors, squares, lab.stream());
                   return {lab.get(squares), lab.get(tensors.first_moment),
                           lab.get(tensors.second_moment), lab.get(tensors.master),
                           lab.get(tensors.parameters)};
                 });
      }
    }
  }
}

TEST_CASE("lamb's ratio is clamped, and 1 where a norm is zero", "[ops][optimizer]") {
  const LambStep step{.max_coeff = 4.0F, .min_coeff = 0.5F};
  CHECK(lamb_trust_ratio(step, 9.0, 4.0) == 1.5F);
  CHECK(lamb_trust_ratio(step, 100.0, 1.0) == 4.0F);
  CHECK(lamb_trust_ratio(step, 1.0, 100.0) == 0.5F);
  CHECK(lamb_trust_ratio(step, 0.0, 100.0) == 1.0F);
  CHECK(lamb_trust_ratio(step, 100.0, 0.0) == 1.0F);
}

TEST_CASE("muon's momentum is a mean, looked ahead of with nesterov", "[ops][optimizer]") {
  for (const bool nesterov : {false, true}) {
    for (const DType dtype : kComputeDtypes) {
      for (const std::int64_t n : kSizes) {
        CAPTURE(nesterov, name_of(dtype), n);
        const Values gradient = rounded_to(dtype, random_values(n, 1));
        const Values start = rounded_to(DType::kF32, random_values(n, 2));
        Values buffer(start.size());
        Values update(start.size());
        for (std::size_t i = 0; i < buffer.size(); ++i) {
          const double g = 0.5 * gradient[i];
          buffer[i] = 0.75 * start[i] + 0.25 * g;
          update[i] = nesterov ? 0.25 * g + 0.75 * buffer[i] : buffer[i];
        }
        conforms(
            {{"buffer", buffer, 1e-6, 1e-7}, {"update", update, relative_error_of(dtype), 1e-7}},
            [&](Lab& lab) -> std::vector<Values> {
              const Tensor buffer_io = lab.put(start, DType::kF32, {n});
              const Tensor update_out = lab.unset(dtype, {n});
              lab.ops().muon_momentum(
                  {.momentum = 0.75F, .nesterov = nesterov, .gradient_scale = 0.5F},
                  lab.put(gradient, dtype, {n}), buffer_io, update_out, lab.stream());
              return {lab.get(buffer_io), lab.get(update_out)};
            });
      }
    }
  }
}

TEST_CASE("divide_by_norm divides by the root of a sum and epsilon", "[ops][optimizer]") {
  for (const DType dtype : kComputeDtypes) {
    const Values x = rounded_to(dtype, random_values(37, 1));
    Values y = x;
    for (double& value : y) {
      value /= 3.0 + 0.5;
    }
    conforms({{"y", y, relative_error_of(dtype), 1e-7}}, [&](Lab& lab) -> std::vector<Values> {
      const Tensor out = lab.unset(dtype, {37});
      lab.ops().divide_by_norm(lab.put(x, dtype, {37}), lab.put({9.0}, DType::kF64, {1}), 0.5F, out,
                               lab.stream());
      return {lab.get(out)};
    });
  }
}

}  // namespace dstrain::test
