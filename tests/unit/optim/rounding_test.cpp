// How far the optimizers' f32 is from fp64 over many updates: no further than PyTorch's.
#include <array>
#include <cmath>

#include <catch2/catch.hpp>

#include "engine/optim/optimizer_kinds.h"
#include "kernels/backend.h"
#include "kernels/optimizers.h"
#include "tests/unit/optim/optimizer_lab.h"

namespace dstrain::test {
namespace {

constexpr std::size_t kElements = 256;
constexpr std::int64_t kUpdates = 1000;

/// In [-0.25, 0.75), so that no mean is lost in cancellation (splitmix64 of the element's number).
float gradient_of(std::int64_t update, std::size_t element) {
  std::uint64_t z = (static_cast<std::uint64_t>(update - 1) * kElements + element + 1) *
                    std::uint64_t{0x9E3779B97F4A7C15};
  z = (z ^ (z >> 30)) * std::uint64_t{0xBF58476D1CE4E5B9};
  z = (z ^ (z >> 27)) * std::uint64_t{0x94D049BB133111EB};
  z ^= z >> 31;
  return static_cast<float>(static_cast<double>(z >> 40) * 0x1p-24 - 0.25);
}

/// ‖move - true move‖ / ‖true move‖, the largest of the updates.
struct MoveError {
  double first_ten = 0.0;
  double all = 0.0;
};

/// AdamW moves parameters that are set to 0 before each update, so that a move is all there is.
MoveError adam_error(const OptimizerConfig& config) {
  constexpr double kRate = 1e-3;
  const Backend backend = make_cpu_backend(1);
  Stream& stream = backend.device->compute_stream();
  std::array<float, kElements> gradient{};
  std::array<float, kElements> master{};
  std::array<float, kElements> first{};
  std::array<float, kElements> second{};
  const Shape shape{static_cast<std::int64_t>(kElements)};
  const OptimizerTensors tensors{.gradient = Tensor(gradient.data(), DType::kF32, shape),
                                 .master = Tensor(master.data(), DType::kF32, shape),
                                 .first_moment = Tensor(first.data(), DType::kF32, shape),
                                 .second_moment = Tensor(second.data(), DType::kF32, shape)};
  Values m(kElements);
  Values v(kElements);
  MoveError error;
  for (std::int64_t update = 1; update <= kUpdates; ++update) {
    master.fill(0.0F);
    for (std::size_t i = 0; i < kElements; ++i) {
      gradient[i] = gradient_of(update, i);
    }
    backend.ops->update(adamw_step(config, {.learning_rate = kRate, .update = update}, kRate),
                        tensors, stream);
    stream.synchronize();
    const auto t = static_cast<double>(update);
    const double correction1 = 1.0 - std::pow(config.beta1, t);
    const double correction2 = 1.0 - std::pow(config.beta2, t);
    double error_squares = 0.0;
    double squares = 0.0;
    for (std::size_t i = 0; i < kElements; ++i) {
      const double g = gradient[i];
      m[i] = config.beta1 * m[i] + (1.0 - config.beta1) * g;
      v[i] = config.beta2 * v[i] + (1.0 - config.beta2) * g * g;
      const double move =
          -kRate * (m[i] / correction1) / (std::sqrt(v[i] / correction2) + config.epsilon);
      const double difference = static_cast<double>(master[i]) - move;
      error_squares += difference * difference;
      squares += move * move;
    }
    const double relative = std::sqrt(error_squares / squares);
    error.all = std::max(error.all, relative);
    error.first_ten = update <= 10 ? error.all : error.first_ten;
  }
  return error;
}

}  // namespace

// The bounds are torch.optim.AdamW's own errors on the same gradients (PyTorch 2.9.1, CPU, neither
// fused nor foreach), measured in the same way against numpy's fp64. In the first ten updates both
// are a rounding or two away, PyTorch at most 1.96e-7.
// Both tests count on a product and a sum being rounded once, as optimised builds do where the
// processor has FMA; the sanitizers' build, which leaves slow tests out, rounds twice.
TEST_CASE("AdamW's moves are no further from fp64 than PyTorch's", "[optim][slow]") {
  struct Row {
    double beta1, beta2, pytorch;
  };
  const std::vector<Row> rows{
      {0.9, 0.9, 2.37e-7},      {0.9, 0.99, 4.60e-7},    {0.9, 0.999, 2.65e-6},
      {0.9, 0.9999, 4.21e-6},   {0.99, 0.9, 3.07e-7},    {0.99, 0.99, 6.04e-7},
      {0.99, 0.999, 2.79e-6},   {0.99, 0.9999, 4.14e-6}, {0.999, 0.9, 5.16e-7},
      {0.999, 0.99, 6.73e-7},   {0.999, 0.999, 2.70e-6}, {0.999, 0.9999, 4.26e-6},
      {0.9999, 0.9, 5.58e-7},   {0.9999, 0.99, 7.55e-7}, {0.9999, 0.999, 2.78e-6},
      {0.9999, 0.9999, 4.20e-6}};
  for (const Row& row : rows) {
    CAPTURE(row.beta1, row.beta2);
    const MoveError error = adam_error({.beta1 = row.beta1, .beta2 = row.beta2, .epsilon = 1e-8});
    CHECK(error.first_ten <= 1.96e-7);
    CHECK(error.all <= row.pytorch);
  }
}

// A gradient of 1 for 100 updates: the mean is 1 - betaᵗ. 1 - 0.9999 as a difference of floats is
// 1.7e-4 too large.
TEST_CASE("every optimizer's means have the weights that they should", "[optim][slow]") {
  constexpr double kBeta = 0.9999;
  constexpr std::int64_t kFew = 100;
  const double mean = 1.0 - std::pow(kBeta, static_cast<double>(kFew));
  const double buffer = 1.0 + (1.0 - kBeta) * static_cast<double>(kFew - 1);  // undamped at first
  struct Row {
    OptimizerConfig config;
    double first;
    std::optional<double> second;
  };
  const std::vector<Row> rows{
      {{.kind = OptimizerKind::kAdamW, .beta1 = kBeta, .beta2 = kBeta}, mean, mean},
      {{.kind = OptimizerKind::kLamb, .beta1 = kBeta, .beta2 = kBeta}, mean, mean},
      {{.kind = OptimizerKind::kLion, .beta1 = 0.9, .beta2 = kBeta}, mean, {}},
      {{.kind = OptimizerKind::kMuon, .momentum = kBeta}, mean, {}},
      {{.kind = OptimizerKind::kSgd, .momentum = 1.0, .dampening = kBeta}, buffer, {}}};
  LabModel model;
  model.blueprint.begin_unit("u");
  model.blueprint.add_param({.name = "w", .shape = {3, 2}, .hidden_matrix = true});
  model.start = [](int, std::int64_t) { return 0.5; };
  model.gradient = [](std::int64_t, int, std::int64_t) { return 1.0; };
  for (const Row& row : rows) {
    CAPTURE(static_cast<int>(row.config.kind));
    const LabState state = after_updates(
        model, {.config = row.config, .updates = kFew, .params = [](std::int64_t update) {
                  return UpdateParams{.learning_rate = 1e-3, .update = update};
                }});
    CHECK(state.first_moment[0][0] == Approx(row.first).epsilon(2e-6));
    if (row.second) {
      CHECK(state.second_moment[0][0] == Approx(*row.second).epsilon(2e-6));
    }
  }
}

}  // namespace dstrain::test
