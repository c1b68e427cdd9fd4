// The elementwise optimizers' operations against their formulas in fp64, for every format of
// gradient, copy and state. Stochastic rounding itself: stochastic_rounding_test.cpp.
#include <algorithm>
#include <cmath>
#include <utility>

#include <catch2/catch.hpp>

#include "kernels/optimizers.h"
#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

constexpr int kSteps = 3;
/// Around the vector lengths.
constexpr std::int64_t kSizes[] = {1, 7, 16, 33};
/// More than a task takes.
constexpr std::int64_t kTwoTasks = (1 << 15) + 5;

/// One optimizer: what happens to one element in step t = 1, 2, …, and the operation that does it.
struct Kind {
  bool has_first;
  bool has_second;
  std::function<void(int t, double g, double& p, double& m, double& v)> formula;
  std::function<void(Ops& ops, int t, const OptimizerTensors& tensors, Stream& stream)> run;
  double error_of_first = 1e-8;  ///< more where it sums what is greater than gradients
};

struct Formats {
  DType gradient = DType::kF32;
  DType copy = DType::kF32;  ///< f32: no copy, the master is looked at
  DType master = DType::kF32;
  DType moments = DType::kF32;
};

/// Rounding down instead of up moves a bf16 number by one unit in the last place.
double error_of_state(DType dtype) {
  return dtype == DType::kBF16 ? 0x1p-7 : 2e-6;
}

void follows_its_formula(const Kind& kind, std::int64_t n, const Formats& formats, int steps) {
  CAPTURE(n, name_of(formats.gradient), name_of(formats.copy), name_of(formats.master),
          name_of(formats.moments));
  const Values start = rounded_to(formats.master, random_values(n, 1));
  const Values first_start = rounded_to(formats.moments, random_values(n, 2, 0.1));
  Values second_start = rounded_to(formats.moments, random_values(n, 3, 0.01));
  for (double& v : second_start) {
    v = std::abs(v);
  }
  std::vector<Values> gradients;
  Values p = start;
  Values m = first_start;
  Values v = second_start;
  for (int t = 1; t <= steps; ++t) {
    const auto seed = 10 + static_cast<std::uint64_t>(t);
    gradients.push_back(rounded_to(formats.gradient, random_values(n, seed, 0.1)));
    for (std::size_t i = 0; i < p.size(); ++i) {
      kind.formula(t, gradients.back()[i], p[i], m[i], v[i]);
    }
  }
  const double copy_error = formats.copy == DType::kF32 ? error_of_state(formats.master)
                                                        : relative_error_of(formats.copy);
  std::vector<Expected> expected{{"master", p, error_of_state(formats.master), 2e-7},
                                 {"parameters", p, copy_error, 2e-7}};
  if (kind.has_first) {
    expected.push_back({"first moment", m, error_of_state(formats.moments), kind.error_of_first});
  }
  if (kind.has_second) {
    expected.push_back({"second moment", v, error_of_state(formats.moments), 1e-8});
  }
  conforms(expected, [&](Lab& lab) {
    OptimizerTensors tensors{.master = lab.put(start, formats.master, {n}),
                             .noise = {.seed = 5, .stream = 6, .first_element = 7}};
    if (kind.has_first) {
      tensors.first_moment = lab.put(first_start, formats.moments, {n});
    }
    if (kind.has_second) {
      tensors.second_moment = lab.put(second_start, formats.moments, {n});
    }
    if (formats.copy != DType::kF32) {
      tensors.parameters = lab.unset(formats.copy, {n});
    }
    for (int t = 1; t <= steps; ++t) {
      tensors.gradient = lab.put(gradients[static_cast<std::size_t>(t - 1)], formats.gradient, {n});
      kind.run(lab.ops(), t, tensors, lab.stream());
    }
    std::vector<Values> outputs{lab.get(tensors.master)};
    outputs.push_back(tensors.parameters.empty() ? outputs[0] : lab.get(tensors.parameters));
    CHECK(outputs[1] == rounded_to(formats.copy, outputs[0]));
    if (kind.has_first) {
      outputs.push_back(lab.get(tensors.first_moment));
    }
    if (kind.has_second) {
      outputs.push_back(lab.get(tensors.second_moment));
    }
    return outputs;
  });
}

/// Tests f32 state with all formats of gradient and copy, and one step in which the state is bf16.
void follows_its_formula(const Kind& kind) {
  follows_its_formula(kind, kTwoTasks, {}, kSteps);
  follows_its_formula(kind, kTwoTasks, {.master = DType::kBF16, .moments = DType::kBF16}, 1);
  for (const std::int64_t n : kSizes) {
    for (const DType gradient : kComputeDtypes) {
      follows_its_formula(kind, n, {.gradient = gradient}, kSteps);
    }
    for (const DType copy : {DType::kBF16, DType::kF16}) {
      follows_its_formula(kind, n, {.copy = copy}, kSteps);
    }
    for (const DType master : {DType::kF32, DType::kBF16}) {
      for (const DType moments : {DType::kF32, DType::kBF16}) {
        follows_its_formula(kind, n, {.master = master, .moments = moments}, 1);
      }
    }
  }
}

AdamwStep adam_at(int t) {
  return {.learning_rate = 1e-2F,
          .beta2 = 0.99F,
          .epsilon = 1e-3F,
          .bias_correction1 = 1.0F - std::pow(0.9F, static_cast<float>(t)),
          .bias_correction2 = 1.0F - std::pow(0.99F, static_cast<float>(t)),
          .gradient_scale = 0.5F};
}

/// Kingma & Ba 2015, algorithm 1; gives m̂ / (√v̂ + ε).
double adam_direction(const AdamwStep& step, double g, double& m, double& v) {
  m = step.beta1 * m + (1.0 - step.beta1) * g;
  v = step.beta2 * v + (1.0 - step.beta2) * g * g;
  return m / step.bias_correction1 / (std::sqrt(v / step.bias_correction2) + step.epsilon);
}

SgdStep sgd_at(int t, float momentum, bool nesterov) {
  return {.learning_rate = 0.05F,
          .momentum = momentum,
          .dampening = nesterov ? 0.0F : 0.25F,
          .nesterov = nesterov,
          .first = t == 1,
          .weight_decay = 0.1F,
          .gradient_scale = 0.5F};
}

}  // namespace

TEST_CASE("adamw follows the paper's algorithm in fp64", "[ops][optimizer]") {
  follows_its_formula({.has_first = true,
                       .has_second = true,
                       .formula =
                           [](int t, double g, double& p, double& m, double& v) {
                             const AdamwStep step = adam_at(t);
                             const double old = p;
                             p -= step.learning_rate * adam_direction(step, 0.5 * g, m, v);
                             p -= step.learning_rate * 0.25 * old;
                           },
                       .run =
                           [](Ops& ops, int t, const OptimizerTensors& tensors, Stream& stream) {
                             AdamwStep step = adam_at(t);
                             step.weight_decay = 0.25F;
                             ops.update(step, tensors, stream);
                           }});
}

TEST_CASE("adam adds the decay to the gradient", "[ops][optimizer]") {
  follows_its_formula({.has_first = true,
                       .has_second = true,
                       .formula =
                           [](int t, double g, double& p, double& m, double& v) {
                             const AdamwStep step = adam_at(t);
                             p -= step.learning_rate *
                                  adam_direction(step, 0.5 * g + 0.25 * p, m, v);
                           },
                       .run =
                           [](Ops& ops, int t, const OptimizerTensors& tensors, Stream& stream) {
                             AdamwStep step = adam_at(t);
                             step.gradient_decay = 0.25F;
                             ops.update(step, tensors, stream);
                           }});
}

TEST_CASE("sgd has momentum, dampening and Nesterov's look ahead", "[ops][optimizer]") {
  for (const float momentum : {0.0F, 0.75F}) {
    for (const bool nesterov : {false, true}) {
      if (nesterov && momentum == 0.0F) {
        continue;
      }
      CAPTURE(momentum, nesterov);
      follows_its_formula(
          {.has_first = momentum != 0.0F,
           .has_second = false,
           .formula =
               [=](int t, double g, double& p, double& buffer, double& /*second*/) {
                 const SgdStep step = sgd_at(t, momentum, nesterov);
                 g = 0.5 * g + step.weight_decay * p;
                 buffer = t == 1 ? g : step.momentum * buffer + (1.0 - step.dampening) * g;
                 double move = momentum == 0.0F ? g : buffer;
                 if (nesterov) {
                   move = g + step.momentum * buffer;
                 }
                 p -= step.learning_rate * move;
               },
           .run =
               [=](Ops& ops, int t, const OptimizerTensors& tensors, Stream& stream) {
                 ops.update(sgd_at(t, momentum, nesterov), tensors, stream);
               }});
    }
  }
}

TEST_CASE("adagrad divides by the root of all squares so far", "[ops][optimizer]") {
  constexpr AdagradStep kStep{
      .learning_rate = 0.05F, .epsilon = 1e-3F, .weight_decay = 0.25F, .gradient_scale = 0.5F};
  follows_its_formula({.has_first = false,
                       .has_second = true,
                       .formula =
                           [=](int /*t*/, double g, double& p, double& /*first*/, double& sum) {
                             g = 0.5 * g + 0.25 * p;
                             sum += g * g;
                             p -= kStep.learning_rate * g / (std::sqrt(sum) + kStep.epsilon);
                           },
                       .run = [=](Ops& ops, int /*t*/, const OptimizerTensors& tensors,
                                  Stream& stream) { ops.update(kStep, tensors, stream); }});
}

TEST_CASE("rmsprop divides by the root of a mean of squares", "[ops][optimizer]") {
  for (const auto& [momentum, centered] :
       {std::pair{0.0, false}, std::pair{0.75, false}, std::pair{0.0, true}}) {
    const RmspropStep step{.learning_rate = 0.01,
                           .alpha = 0.875,
                           .epsilon = 0.05,
                           .momentum = momentum,
                           .centered = centered,
                           .weight_decay = 0.25,
                           .gradient_scale = 0.5};
    CAPTURE(momentum, centered);
    follows_its_formula({.has_first = momentum != 0.0 || centered,
                         .has_second = true,
                         .formula =
                             [=](int /*t*/, double g, double& p, double& first, double& squares) {
                               g = 0.5 * g + 0.25 * p;
                               squares = 0.875 * squares + 0.125 * g * g;
                               double variance = squares;
                               if (step.centered) {
                                 first = 0.875 * first + 0.125 * g;
                                 variance = std::max(variance - first * first,
                                                     0.0);  // any state may be first
                               }
                               const double direction = g / (std::sqrt(variance) + step.epsilon);
                               if (step.momentum != 0.0) first = step.momentum * first + direction;
                               p -= step.learning_rate * (step.momentum != 0.0 ? first : direction);
                             },
                         .run = [=](Ops& ops, int /*t*/, const OptimizerTensors& tensors,
                                    Stream& stream) { ops.update(step, tensors, stream); },
                         .error_of_first = 5e-7});
  }
}

// The gradient never changes, so rounding leaves a little more than nothing of its variance, or
// less.
TEST_CASE("rmsprop that is centered stays finite where nothing varies", "[ops][optimizer]") {
  for (const BackendUnderTest& backend : backends_under_test()) {
    Lab lab(backend.make(1));
    const Shape shape{40};
    Values gradient;
    for (int i = 0; i < 40; ++i) {
      gradient.push_back(std::pow(1.7, i - 20));
    }
    const OptimizerTensors tensors{.gradient = lab.put(gradient, DType::kF32, shape),
                                   .master = lab.put(Values(40, 0.0), DType::kF32, shape),
                                   .first_moment = lab.put(Values(40, 0.0), DType::kF32, shape),
                                   .second_moment = lab.put(Values(40, 0.0), DType::kF32, shape)};
    for (int t = 0; t < 300; ++t) {
      lab.ops().update(RmspropStep{.learning_rate = 1e-6, .alpha = 0.9, .centered = true}, tensors,
                       lab.stream());
    }
    for (const double value : lab.get(tensors.master)) {
      CHECK(std::isfinite(value));
    }
  }
}

TEST_CASE("lion moves by the sign of a mean, and not where there is none", "[ops][optimizer]") {
  constexpr LionStep kStep{.learning_rate = 0.01F,
                           .beta1 = 0.75F,
                           .beta2 = 0.875F,
                           .weight_decay = 0.25F,
                           .gradient_scale = 0.5F};
  follows_its_formula({.has_first = true,
                       .has_second = false,
                       .formula =
                           [=](int /*t*/, double g, double& p, double& m, double& /*second*/) {
                             g *= 0.5;
                             const double c = 0.75 * m + 0.25 * g;
                             const double sign = c > 0.0 ? 1.0 : c < 0.0 ? -1.0 : 0.0;
                             p -= kStep.learning_rate * (sign + 0.25 * p);
                             m = 0.875 * m + 0.125 * g;
                           },
                       .run = [=](Ops& ops, int /*t*/, const OptimizerTensors& tensors,
                                  Stream& stream) { ops.update(kStep, tensors, stream); }});
  conforms({{"master", Values(20, 3.0), 0.0, 0.0}}, [](Lab& lab) -> std::vector<Values> {
    const OptimizerTensors tensors{.gradient = lab.put(Values(20, 0.0), DType::kF32, {20}),
                                   .master = lab.put(Values(20, 3.0), DType::kF32, {20}),
                                   .first_moment = lab.put(Values(20, 0.0), DType::kF32, {20})};
    lab.ops().update(LionStep{.learning_rate = 0.01F}, tensors, lab.stream());
    return {lab.get(tensors.master)};
  });
}

TEST_CASE("an optimizer refuses state of a kind that it does not keep", "[ops][optimizer]") {
  for (const BackendUnderTest& backend : backends_under_test()) {
    Lab lab(backend.make(1));
    const auto tensor = [&](DType dtype) { return lab.put(Values(6, 1.0), dtype, {6}); };
    OptimizerTensors tensors{.gradient = tensor(DType::kF32),
                             .master = tensor(DType::kF32),
                             .first_moment = tensor(DType::kF32)};
    CHECK_THROWS_WITH(lab.ops().update(AdamwStep{}, tensors, lab.stream()),
                      Catch::Contains("adamw: wants a first moment and wants a second one"));
    CHECK_THROWS_WITH(lab.ops().update(SgdStep{}, tensors, lab.stream()),
                      Catch::Contains("sgd: has not a first moment"));
    tensors.second_moment = tensor(DType::kBF16);
    CHECK_THROWS_WITH(
        lab.ops().lamb_moments({}, tensors, lab.unset(DType::kF64, {2}), lab.stream()),
        Catch::Contains("lamb: master and moments are f32, not bf16"));
    tensors.second_moment = tensor(DType::kF16);
    CHECK_THROWS_WITH(lab.ops().update(AdamwStep{}, tensors, lab.stream()),
                      Catch::Contains("second moment is f16"));
    tensors.second_moment = lab.put(Values(5, 1.0), DType::kF32, {5});
    CHECK_THROWS_WITH(lab.ops().update(AdamwStep{}, tensors, lab.stream()),
                      Catch::Contains("second moment is f32 of shape [5]"));
  }
}

}  // namespace dstrain::test
