// AdamW, Adam, SGD, Adagrad, RMSprop and Lion: against the published formulas in fp64 on whole
// tensors, and against PyTorch's figures.
#include <cmath>
#include <utility>

#include <catch2/catch.hpp>

#include "tests/unit/optim/optimizer_lab.h"

namespace dstrain::test {
namespace {

constexpr std::int64_t kUpdates = 4;

/// One element's update: gradient as scaled, decay 0 where the parameter has none.
using Formula = std::function<void(
    const UpdateParams& params, double decay, double g, double& p, double& m, double& v)>;

void follows(const OptimizerConfig& config, const Formula& formula) {
  const LabModel model = small_model();
  const LabState state =
      after_updates(model, {.config = config, .updates = kUpdates, .params = changing_params});
  std::vector<ReferenceTensor> expected = reference_start(model);
  for (ReferenceTensor& tensor : expected) {
    for (std::int64_t update = 1; update <= kUpdates; ++update) {
      UpdateParams params = changing_params(update);
      params.learning_rate *= tensor.decl->rate_scale;
      for (std::size_t i = 0; i < tensor.p.size(); ++i) {
        const double g =
            params.gradient_scale *
            model.gradient(update, tensor.unit, tensor.offset + static_cast<std::int64_t>(i));
        const bool decays = config.decay == DecayRule::kAll || tensor.decl->decays;
        formula(params, decays ? config.weight_decay : 0.0, g, tensor.p[i], tensor.m[i],
                tensor.v[i]);
      }
    }
  }
  check_master(state, expected, 2e-6, 2e-7);
}

double adam_direction(
    const OptimizerConfig& config, const UpdateParams& params, double g, double& m, double& v) {
  const double beta1 = params.beta1.value_or(config.beta1);
  const double beta2 = params.beta2.value_or(config.beta2);
  const auto t = static_cast<double>(params.update);
  m = beta1 * m + (1.0 - beta1) * g;
  v = beta2 * v + (1.0 - beta2) * g * g;
  const double m_hat = config.bias_correction ? m / (1.0 - std::pow(beta1, t)) : m;
  const double v_hat = config.bias_correction ? v / (1.0 - std::pow(beta2, t)) : v;
  return m_hat / (std::sqrt(v_hat) + config.epsilon);
}

constexpr OptimizerConfig kAdam{.beta1 = 0.8, .beta2 = 0.9, .epsilon = 1e-3, .weight_decay = 0.5};

}  // namespace

TEST_CASE("AdamW follows the published algorithm, decay on matrices only or on all", "[optim]") {
  for (const DecayRule rule : {DecayRule::kMatrices, DecayRule::kAll}) {
    for (const bool correction : {true, false}) {
      OptimizerConfig config = kAdam;
      config.decay = rule;
      config.bias_correction = correction;
      follows(config, [&](const UpdateParams& params, double decay, double g, double& p, double& m,
                          double& v) {
        const double old = p;
        p -= params.learning_rate * (adam_direction(config, params, g, m, v) + decay * old);
      });
    }
  }
}

TEST_CASE("Adam without AdamW's mode adds the decay to the gradient", "[optim]") {
  OptimizerConfig config = kAdam;
  config.kind = OptimizerKind::kAdam;
  follows(config,
          [&](const UpdateParams& params, double decay, double g, double& p, double& m, double& v) {
            p -= params.learning_rate * adam_direction(config, params, g + decay * p, m, v);
          });
}

TEST_CASE("SGD takes its momentum from the first gradient on", "[optim]") {
  for (const OptimizerConfig& config :
       {OptimizerConfig{.kind = OptimizerKind::kSgd, .weight_decay = 0.5},
        OptimizerConfig{
            .kind = OptimizerKind::kSgd, .weight_decay = 0.5, .momentum = 0.9, .dampening = 0.25},
        OptimizerConfig{
            .kind = OptimizerKind::kSgd, .weight_decay = 0.5, .momentum = 0.9, .nesterov = true}}) {
    follows(config, [&](const UpdateParams& params, double decay, double g, double& p, double& m,
                        double& /*v*/) {
      g += decay * p;
      m = params.update == 1 ? g : config.momentum * m + (1.0 - config.dampening) * g;
      const double buffered = config.nesterov ? g + config.momentum * m : m;
      p -= params.learning_rate * (config.momentum == 0.0 ? g : buffered);
    });
  }
}

TEST_CASE("Adagrad sums squares", "[optim]") {
  const OptimizerConfig config{
      .kind = OptimizerKind::kAdagrad, .epsilon = 1e-3, .weight_decay = 0.5};
  follows(config, [&](const UpdateParams& params, double decay, double g, double& p, double& /*m*/,
                      double& sum) {
    g += decay * p;
    sum += g * g;
    p -= params.learning_rate * g / (std::sqrt(sum) + config.epsilon);
  });
}

TEST_CASE("RMSprop takes a mean of squares, a buffer or a mean to be centered by", "[optim]") {
  for (const auto& [momentum, centered] :
       {std::pair{0.0, false}, std::pair{0.9, false}, std::pair{0.0, true}}) {
    const OptimizerConfig config{.kind = OptimizerKind::kRmsprop,
                                 .epsilon = 1e-3,
                                 .weight_decay = 0.5,
                                 .momentum = momentum,
                                 .alpha = 0.8,
                                 .centered = centered};
    follows(config, [&](const UpdateParams& params, double decay, double g, double& p, double& m,
                        double& v) {
      g += decay * p;
      v = config.alpha * v + (1.0 - config.alpha) * g * g;
      if (config.centered) {
        m = config.alpha * m + (1.0 - config.alpha) * g;
        p -= params.learning_rate * g / (std::sqrt(v - m * m) + config.epsilon);
      } else {
        m = config.momentum * m + g / (std::sqrt(v) + config.epsilon);
        p -= params.learning_rate * m;
      }
    });
  }
}

TEST_CASE("Lion moves by signs", "[optim]") {
  const OptimizerConfig config{
      .kind = OptimizerKind::kLion, .beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.5};
  follows(config, [&](const UpdateParams& params, double decay, double g, double& p, double& m,
                      double& /*v*/) {
    const double beta1 = params.beta1.value_or(config.beta1);
    const double beta2 = params.beta2.value_or(config.beta2);
    const double c = beta1 * m + (1.0 - beta1) * g;
    m = beta2 * m + (1.0 - beta2) * g;
    p -= params.learning_rate * (std::copysign(1.0, c) + decay * p);
  });
}

// p₀ = (0.5, -0.25, 1.5, 0), g_t = (0.1 t, -0.2, 0.3 / t, 0.05 (t - 2)), three steps with lr 0.1
// and weight_decay 0.1, in fp64 with PyTorch 1.13: torch.optim.X([p], lr=0.1, weight_decay=0.1, …).
TEST_CASE("three steps give PyTorch's figures", "[optim]") {
  LabModel model;
  model.blueprint.begin_unit("u");
  model.blueprint.add_param({.name = "w", .shape = {4}});
  model.start = [](int /*unit*/, std::int64_t i) { return Values{0.5, -0.25, 1.5, 0.0}.at(i); };
  model.gradient = [](std::int64_t update, int /*unit*/, std::int64_t i) {
    const auto t = static_cast<double>(update);
    return Values{0.1 * t, -0.2, 0.3 / t, 0.05 * (t - 2.0)}.at(i);
  };
  struct Row {
    OptimizerConfig config;
    Values expected;
  };
  const std::vector<Row> rows{
      // AdamW(betas=(0.8, 0.95), eps=1e-3)
      {{.kind = OptimizerKind::kAdamW, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3},
       {0.1945165156, 0.0529575883, 1.1824436954, 0.1397368759}},
      // Adam(betas=(0.8, 0.95), eps=1e-3)
      {{.kind = OptimizerKind::kAdam, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3},
       {0.2024236540, 0.0478304487, 1.2124067888, 0.1100278267}},
      // SGD()
      {{.kind = OptimizerKind::kSgd}, {0.4255485000, -0.1831727500, 1.4011955000, -0.0000995000}},
      // SGD(momentum=0.9, dampening=0.25)
      {{.kind = OptimizerKind::kSgd, .momentum = 0.9, .dampening = 0.25},
       {0.3980422813, -0.1408540469, 1.3179987187, 0.0096577813}},
      // SGD(momentum=0.9, nesterov=True)
      {{.kind = OptimizerKind::kSgd, .momentum = 0.9, .nesterov = true},
       {0.3166019115, -0.0720113672, 1.2221312345, 0.0071835295}},
      // Adagrad(eps=1e-3)
      {{.kind = OptimizerKind::kAdagrad, .epsilon = 1e-3},
       {0.2402707596, -0.0261256935, 1.3060797798, 0.0050481997}},
      // RMSprop(alpha=0.9, eps=1e-3), of PyTorch 2.9 as those that follow
      {{.kind = OptimizerKind::kRmsprop, .epsilon = 1e-3, .alpha = 0.9},
       {-0.3111271433, 0.4393712199, 0.8964525783, -0.0957673600}},
      // RMSprop(alpha=0.9, eps=1e-3, momentum=0.8)
      {{.kind = OptimizerKind::kRmsprop, .epsilon = 1e-3, .momentum = 0.8, .alpha = 0.9},
       {-0.9574881658, 1.0382408407, 0.3236584701, 0.1771481449}},
      // RMSprop(alpha=0.9, eps=1e-3, centered=True)
      {{.kind = OptimizerKind::kRmsprop, .epsilon = 1e-3, .alpha = 0.9, .centered = true},
       {-0.3909174429, 0.5030049078, 0.8471051817, -0.0914740906}}};
  for (const Row& row : rows) {
    OptimizerConfig config = row.config;
    config.weight_decay = 0.1;
    const LabState state =
        after_updates(model, {.config = config, .params = [](std::int64_t update) {
                                return UpdateParams{.learning_rate = 0.1, .update = update};
                              }});
    for (std::size_t i = 0; i < 4; ++i) {
      CAPTURE(static_cast<int>(config.kind), config.momentum, i);
      CHECK(state.master[0][i] == Approx(row.expected[i]).epsilon(2e-6).margin(1e-7));
    }
  }
}

TEST_CASE("each optimizer says what it keeps", "[optim]") {
  const auto moments = [](OptimizerKind kind, double momentum = 0.0) {
    return moments_of({.kind = kind, .momentum = momentum});
  };
  using enum MomentExtent;
  CHECK(moments(OptimizerKind::kAdamW).first == kAll);
  CHECK(moments(OptimizerKind::kAdamW).second == kAll);
  CHECK(moments(OptimizerKind::kSgd).first == kNone);
  CHECK(moments(OptimizerKind::kSgd, 0.9).first == kAll);
  CHECK(moments(OptimizerKind::kSgd, 0.9).second == kNone);
  CHECK(moments(OptimizerKind::kAdagrad).first == kNone);
  CHECK(moments(OptimizerKind::kAdagrad).second == kAll);
  CHECK(moments(OptimizerKind::kRmsprop).first == kNone);
  CHECK(moments(OptimizerKind::kRmsprop).second == kAll);
  CHECK(moments(OptimizerKind::kRmsprop, 0.9).first == kAll);
  CHECK(moments_of({.kind = OptimizerKind::kRmsprop, .centered = true}).first == kAll);
  CHECK(moments(OptimizerKind::kLion).second == kNone);
  CHECK(moments(OptimizerKind::kMuon, 0.95).second == kNotHiddenMatrices);
}

}  // namespace dstrain::test
