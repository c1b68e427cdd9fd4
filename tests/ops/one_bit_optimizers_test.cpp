// The steps of 1-bit Adam, 0/1 Adam and 1-bit LAMB once the variance is frozen, against their
// formulas in fp64. Whole runs: tests/unit/optim/one_bit_golden_test.cpp.
#include <algorithm>
#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

#include "kernels/math/one_bit_lamb.h"
#include "kernels/optimizers.h"
#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

/// Around the vector lengths and the pieces that tasks take.
constexpr std::int64_t kSizes[] = {1, 7, 16, 33, (1 << 15) + 5};
constexpr int kSteps = 3;

Values absolute(Values values) {
  for (double& value : values) {
    value = std::abs(value);
  }
  return values;
}

/// A step of an optimizer that updates each element alone, and what it does to one.
struct Kind {
  ElementwiseStep step;
  bool has_third;
  /// Updates the master, m and w; returns the parameter.
  std::function<double(double g, double& p, double& m, double v, double& w)> formula;
};

struct Formats {
  DType gradient = DType::kF32;
  DType copy = DType::kF32;
  bool has_copy = true;
  std::int64_t before = 0;  ///< elements of each tensor before those that are updated
};

void follows_its_formula(const Kind& kind, std::int64_t n, const Formats& formats) {
  CAPTURE(n, name_of(formats.gradient), name_of(formats.copy), formats.has_copy, formats.before);
  const std::int64_t all = formats.before + n;
  const Values start = rounded_to(DType::kF32, random_values(all, 1));
  const Values first_start = rounded_to(DType::kF32, random_values(all, 2, 0.1));
  const Values variance = absolute(rounded_to(DType::kF32, random_values(all, 3, 0.01)));
  const Values third_start = rounded_to(DType::kF32, random_values(all, 4, 0.01));
  Values p = start;
  Values m = first_start;
  Values w = third_start;
  Values parameters(start.size(), 99.0);
  std::vector<Values> gradients;
  for (std::uint64_t t = 0; t < kSteps; ++t) {
    gradients.push_back(rounded_to(formats.gradient, random_values(all, 10 + t, 0.1)));
    for (auto i = static_cast<std::size_t>(formats.before); i < p.size(); ++i) {
      parameters[i] = kind.formula(gradients.back()[i], p[i], m[i], variance[i], w[i]);
    }
  }
  std::vector<Expected> expected{{"master", p, 2e-6, 2e-7},
                                 {"first moment", m, 2e-6, 1e-8},
                                 {"second moment", variance, 0.0, 0.0}};
  if (kind.has_third) {  // a sum of numbers up to 0.03, whatever is left of them
    expected.push_back({"third moment", w, 2e-6, 4e-9});
  }
  if (formats.has_copy) {
    expected.push_back({"parameters", parameters, relative_error_of(formats.copy), 2e-7});
  }
  conforms(expected, [&](Lab& lab) {
    const Tensor master = lab.put(start, DType::kF32, {all});
    const Tensor first = lab.put(first_start, DType::kF32, {all});
    const Tensor second = lab.put(variance, DType::kF32, {all});
    const Tensor third = lab.put(third_start, DType::kF32, {all});
    const Tensor copy = lab.unset(formats.copy, {all});
    for (const Values& values : gradients) {
      const Tensor gradient = lab.put(values, formats.gradient, {all});
      OptimizerTensors tensors{.gradient = gradient.flat(formats.before, all),
                               .master = master.flat(formats.before, all),
                               .first_moment = first.flat(formats.before, all),
                               .second_moment = second.flat(formats.before, all)};
      if (kind.has_third) {
        tensors.third_moment = third.flat(formats.before, all);
      }
      if (formats.has_copy) {
        tensors.parameters = copy.flat(formats.before, all);
      }
      lab.ops().update(kind.step, tensors, lab.stream());
    }
    std::vector<Values> outputs{lab.get(master), lab.get(first), lab.get(second)};
    if (kind.has_third) {
      outputs.push_back(lab.get(third));
    }
    if (formats.has_copy) {
      outputs.push_back(lab.get(copy));
    }
    return outputs;
  });
}

void follows_its_formula(const Kind& kind, bool master_is_enough) {
  for (const std::int64_t n : kSizes) {
    for (const DType gradient : kComputeDtypes) {
      follows_its_formula(kind, n, {.gradient = gradient});
    }
    for (const DType copy : {DType::kBF16, DType::kF16}) {
      follows_its_formula(kind, n, {.copy = copy, .before = 3});
    }
    if (master_is_enough) {
      follows_its_formula(kind, n, {.has_copy = false});
    }
  }
}

}  // namespace

TEST_CASE("1-bit adam takes the momentum that it is given, and leaves the variance",
          "[ops][optimizer]") {
  for (const double decay : {0.0, 0.25}) {
    CAPTURE(decay);
    const OneBitAdamStep step{.learning_rate = 0.01, .epsilon = 0.05, .weight_decay = decay};
    follows_its_formula({.step = step,
                         .has_third = false,
                         .formula =
                             [=](double d, double& p, double& m, double v, double& /*w*/) {
                               m = d;
                               p -= step.learning_rate *
                                    (d / (std::sqrt(v) + step.epsilon) + decay * p);
                               return p;
                             }},
                        true);
  }
}

TEST_CASE("0/1 adam's local step moves the parameters, and the master by the decay alone",
          "[ops][optimizer]") {
  for (const double decay : {0.0, 0.25}) {
    CAPTURE(decay);
    const LocalStep step{.learning_rate = 0.05,
                         .beta1 = 0.8,
                         .epsilon = 0.05,
                         .weight_decay = decay,
                         .gradient_scale = 0.5};
    follows_its_formula({.step = step,
                         .has_third = true,
                         .formula =
                             [=](double g, double& p, double& m, double v, double& w) {
                               m = 0.8 * m + 0.2 * 0.5 * g;
                               w += step.learning_rate * m;
                               p -= step.learning_rate * decay * p;
                               return p - w / (std::sqrt(v) + step.epsilon);
                             }},
                        false);
  }
}

TEST_CASE("0/1 adam's synchronisation moves the master and empties the sum", "[ops][optimizer]") {
  const SyncStep step{.epsilon = 0.5, .rates = 0.3};
  follows_its_formula({.step = step,
                       .has_third = true,
                       .formula =
                           [=](double d, double& p, double& m, double v, double& w) {
                             m = d / step.rates;
                             w = 0.0;
                             p -= d / (std::sqrt(v) + step.epsilon);
                             return p;
                           }},
                      true);
}

// What 0/1 Adam does with gradients that came by signs, before its variance is frozen.
TEST_CASE("adamw with a second beta of 1 leaves the variance as it is", "[ops][optimizer]") {
  for (const std::int64_t n : kSizes) {
    const Values start = rounded_to(DType::kF32, random_values(n, 1));
    const Values m_start = rounded_to(DType::kF32, random_values(n, 2, 0.1));
    const Values gradient = rounded_to(DType::kF32, random_values(n, 3, 1e18));
    Values variance = rounded_to(DType::kF32, random_values(n, 4, 0.01));
    for (std::size_t i = 0; i < variance.size(); ++i) {  // of all magnitudes
      variance[i] = std::ldexp(std::abs(variance[i]), static_cast<int>(i % 200) - 100);
    }
    Values m = m_start;
    for (std::size_t i = 0; i < m.size(); ++i) {
      m[i] = 0.8 * m[i] + 0.2 * gradient[i];
    }
    conforms({{"m", m, 2e-6, 0.0}, {"v", variance, 0.0, 0.0}},
             [&](Lab& lab) -> std::vector<Values> {
               const OptimizerTensors tensors{.gradient = lab.put(gradient, DType::kF32, {n}),
                                              .master = lab.put(start, DType::kF32, {n}),
                                              .first_moment = lab.put(m_start, DType::kF32, {n}),
                                              .second_moment = lab.put(variance, DType::kF32, {n})};
               for (int k = 0; k < 50; ++k) {
                 lab.ops().update(AdamwStep{.beta1 = k == 0 ? 0.8 : 1.0, .beta2 = 1.0}, tensors,
                                  lab.stream());
               }
               return {lab.get(tensors.first_moment), lab.get(tensors.second_moment)};
             });
  }
}

TEST_CASE("steps with a frozen variance refuse tensors of another kind", "[ops][optimizer]") {
  for (const BackendUnderTest& backend : backends_under_test()) {
    Lab lab(backend.make(1));
    const auto tensor = [&](DType dtype) { return lab.put(Values(6, 1.0), dtype, {6}); };
    OptimizerTensors tensors{.gradient = tensor(DType::kF32),
                             .master = tensor(DType::kF32),
                             .first_moment = tensor(DType::kF32),
                             .second_moment = tensor(DType::kF32)};
    const auto update = [&](const ElementwiseStep& step) {
      lab.ops().update(step, tensors, lab.stream());
    };
    CHECK_THROWS_WITH(update(LocalStep{}), Catch::Contains("local_step: wants a third moment"));
    CHECK_THROWS_WITH(update(SyncStep{}), Catch::Contains("sync_step: wants a third moment"));
    tensors.third_moment = tensor(DType::kF32);
    CHECK_THROWS_WITH(update(OneBitAdamStep{}),
                      Catch::Contains("one_bit_adam: has not a third moment"));
    CHECK_THROWS_WITH(update(AdamwStep{}), Catch::Contains("adamw: has not a third moment"));
    CHECK_THROWS_WITH(update(LocalStep{}), Catch::Contains("local_step: wants parameters"));
    tensors.third_moment = lab.put(Values(5, 1.0), DType::kF32, {5});
    CHECK_THROWS_WITH(update(SyncStep{}), Catch::Contains("third moment is f32 of shape [5]"));
    tensors.third_moment = tensor(DType::kBF16);
    CHECK_THROWS_WITH(update(SyncStep{}),
                      Catch::Contains("sync_step: master and moments are f32, not bf16"));
    CHECK_THROWS_WITH(
        lab.ops().one_bit_lamb_moments({}, tensors, lab.unset(DType::kF64, {3}), lab.stream()),
        Catch::Contains("one_bit_lamb: master and moments are f32, not bf16"));
    tensors.third_moment = {};
    tensors.second_moment = tensor(DType::kBF16);
    CHECK_THROWS_WITH(update(OneBitAdamStep{}),
                      Catch::Contains("one_bit_adam: master and moments are f32, not bf16"));
  }
}

// Three updates, in which the factor is free, held back by its limits, or by the last one.
TEST_CASE("1-bit lamb follows the fresh variance by a factor", "[ops][optimizer]") {
  const OneBitLambStep kFree{.factor_max = 1e9, .factor_min = 0.0, .factor_threshold = 1e9};
  const OneBitLambStep kLimited{.factor_max = 1.25, .factor_min = 0.75, .factor_threshold = 1e9};
  const OneBitLambStep kSlow{.factor_max = 1e9, .factor_min = 0.0, .factor_threshold = 0.125};
  for (OneBitLambStep step : {kFree, kLimited, kSlow}) {
    for (const double decay : {0.0, 0.25}) {
      for (const DType gradient_dtype : kComputeDtypes) {
        for (const std::int64_t n : kSizes) {
          step.learning_rate = 0.05;
          step.beta1 = 0.8;
          step.beta2 = 0.9;
          step.epsilon = 1e-2;
          step.weight_decay = decay;
          CAPTURE(step.factor_max, step.factor_threshold, decay, name_of(gradient_dtype), n);
          constexpr double kFrozen = 1.5;
          const Values start = rounded_to(DType::kF32, random_values(n, 1));
          const Values m_start = rounded_to(DType::kF32, random_values(n, 2, 0.1));
          const Values v = absolute(rounded_to(DType::kF32, random_values(n, 3, 0.01)));
          Values master = start;
          Values m = m_start;
          Values fresh = v;
          double last = 1.0;
          double updates = 0.0;
          double first_terms = 0.0;
          double largest = 0.0;
          std::vector<Values> momenta;
          for (std::uint64_t t = 0; t < kSteps; ++t) {
            momenta.push_back(rounded_to(gradient_dtype, random_values(n, 10 + t, 0.1)));
            updates = first_terms = largest = 0.0;
            Values update(m.size());
            for (std::size_t i = 0; i < m.size(); ++i) {
              const double d = momenta.back()[i];
              const double g = (d - 0.8 * m[i]) / (1.0 - 0.8);
              fresh[i] = 0.9 * fresh[i] + (1.0 - 0.9) * g * g;
              m[i] = d;
              const double deviation = std::sqrt(v[i]) + step.epsilon;
              update[i] = d / deviation + decay * master[i];
              updates += update[i] * update[i];
              first_terms += d / deviation * (d / deviation);
              largest = std::max(largest, deviation / (std::sqrt(fresh[i]) + step.epsilon));
            }
            const double share =
                decay > 0.0 ? std::min(1.0, std::sqrt(first_terms / updates)) : 1.0;
            const double factor =
                std::clamp(largest * share + (1.0 - share), step.factor_min, step.factor_max);
            last = std::clamp(factor, last * (1.0 - step.factor_threshold),
                              last * (1.0 + step.factor_threshold));
            for (std::size_t i = 0; i < m.size(); ++i) {
              master[i] -= 0.05 * kFrozen * last * update[i];
            }
          }
          // Quotients and differences of f32 numbers. Most of what is lost is of the master's
          // decay.
          conforms({{"sums", {updates, first_terms, largest}, 2e-5, 0.0},
                    {"coefficients", {kFrozen, last}, 1e-5, 0.0},
                    {"m", m, 0.0, 0.0},
                    {"v", v, 0.0, 0.0},
                    {"fresh", fresh, 1e-5, 1e-9},
                    {"master", master, 4e-6, 4e-6},
                    {"parameters", master, relative_error_of(DType::kBF16), 4e-6}},
                   [&](Lab& lab) -> std::vector<Values> {
                     OptimizerTensors tensors{.master = lab.put(start, DType::kF32, {n}),
                                              .first_moment = lab.put(m_start, DType::kF32, {n}),
                                              .second_moment = lab.put(v, DType::kF32, {n}),
                                              .third_moment = lab.put(v, DType::kF32, {n}),
                                              .parameters = lab.unset(DType::kBF16, {n})};
                     const Tensor sums = lab.unset(DType::kF64, {3});
                     const Tensor coefficients = lab.put({kFrozen, 1.0}, DType::kF64, {2});
                     for (const Values& momentum : momenta) {
                       tensors.gradient = lab.put(momentum, gradient_dtype, {n});
                       lab.ops().one_bit_lamb_moments(step, tensors, sums, lab.stream());
                       lab.ops().one_bit_lamb_apply(step, tensors, sums, coefficients,
                                                    lab.stream());
                     }
                     return {lab.get(sums),
                             lab.get(coefficients),
                             lab.get(tensors.first_moment),
                             lab.get(tensors.second_moment),
                             lab.get(tensors.third_moment),
                             lab.get(tensors.master),
                             lab.get(tensors.parameters)};
                   });
        }
      }
    }
  }
}

TEST_CASE("1-bit lamb's factor is that of the part without decay, within its limits",
          "[ops][optimizer]") {
  const OneBitLambStep plain{.factor_max = 4.0, .factor_min = 0.5, .factor_threshold = 0.25};
  CHECK(one_bit_lamb_factor(plain, 9.0, 4.0, 1.125, 1.0) == 1.125);
  CHECK(one_bit_lamb_factor(plain, 9.0, 4.0, 3.0, 1.0) == 1.25);   // the last one's limit
  CHECK(one_bit_lamb_factor(plain, 9.0, 4.0, 0.25, 1.0) == 0.75);  // likewise
  CHECK(one_bit_lamb_factor(plain, 9.0, 4.0, 9.0, 3.75) == 4.0);
  CHECK(one_bit_lamb_factor(plain, 9.0, 4.0, 0.25, 0.625) == 0.5);
  OneBitLambStep decaying = plain;
  decaying.weight_decay = 0.1;
  CHECK(one_bit_lamb_factor(decaying, 16.0, 4.0, 1.25, 1.0) == 1.125);  // half of it is decay
  CHECK(one_bit_lamb_factor(decaying, 4.0, 16.0, 1.25, 1.0) == 1.25);   // decay against the rest
  CHECK(one_bit_lamb_factor(decaying, 0.0, 0.0, 1.25, 1.0) == 1.25);
}

TEST_CASE("1-bit lamb's largest ratio is NaN if one is, and 0 of nothing", "[ops][optimizer]") {
  constexpr std::int64_t kCount = (1 << 15) + 5;
  for (const BackendUnderTest& backend : backends_under_test()) {
    CAPTURE(backend.name);
    Lab lab(backend.make(2));
    const Tensor sums = lab.unset(DType::kF64, {3});
    const auto run = [&](std::int64_t n, std::int64_t nan_at) {
      const Values ones(static_cast<std::size_t>(n), 1.0);
      Values fresh = ones;
      if (nan_at < n) {
        fresh[static_cast<std::size_t>(nan_at)] = std::numeric_limits<double>::quiet_NaN();
      }
      const OptimizerTensors tensors{.gradient = lab.put(ones, DType::kF32, {n}),
                                     .master = lab.put(ones, DType::kF32, {n}),
                                     .first_moment = lab.put(ones, DType::kF32, {n}),
                                     .second_moment = lab.put(ones, DType::kF32, {n}),
                                     .third_moment = lab.put(fresh, DType::kF32, {n})};
      lab.ops().one_bit_lamb_moments({}, tensors, sums, lab.stream());
      return lab.get(sums);
    };
    CHECK(std::isfinite(run(kCount, kCount)[2]));
    for (const std::int64_t nan_at :
         {std::int64_t{0}, std::int64_t{17}, kCount / 2, kCount - 6, kCount - 1}) {
      CAPTURE(nan_at);
      CHECK(std::isnan(run(kCount, nan_at)[2]));
      CHECK(std::isfinite(run(kCount, nan_at)[0]));
    }
    CHECK(run(0, 0) == Values{0.0, 0.0, 0.0});
  }
}

TEST_CASE("1-bit lamb remembers trust ratios other than 1", "[ops][optimizer]") {
  conforms({{"coefficients", {0.75 * (0.25 * 1.5) + 0.25 * 4.0, 0.875}, 1e-15, 0.0}},
           [](Lab& lab) -> std::vector<Values> {
             const LambStep step{.max_coeff = 4.0};
             const Tensor coefficients = lab.put({0.0, 0.875}, DType::kF64, {2});
             for (const Values& squares :
                  {Values{9.0, 4.0}, Values{0.0, 4.0}, Values{7.0, 7.0}, Values{100.0, 1.0}}) {
               lab.ops().remember_trust_ratio(step, 0.75, lab.put(squares, DType::kF64, {2}),
                                              coefficients, lab.stream());
             }
             return {lab.get(coefficients)};
           });
}

}  // namespace dstrain::test
