// LAMB against You et al. 2020 with DeepSpeed's details, in fp64 on whole tensors.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <catch2/catch.hpp>

#include "tests/unit/optim/optimizer_lab.h"

namespace dstrain::test {
namespace {

constexpr std::int64_t kUpdates = 4;
constexpr OptimizerConfig kLamb{
    .kind = OptimizerKind::kLamb, .beta1 = 0.8, .beta2 = 0.9, .epsilon = 1e-3, .weight_decay = 0.5};

double norm(const Values& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

std::vector<ReferenceTensor> reference(const LabModel& model, const OptimizerConfig& config) {
  std::vector<ReferenceTensor> tensors = reference_start(model);
  for (ReferenceTensor& tensor : tensors) {
    for (std::int64_t update = 1; update <= kUpdates; ++update) {
      const UpdateParams params = changing_params(update);
      const double beta1 = params.beta1.value_or(config.beta1);
      const double beta2 = params.beta2.value_or(config.beta2);
      Values direction(tensor.p.size());
      for (std::size_t i = 0; i < direction.size(); ++i) {
        const double g =
            params.gradient_scale *
            model.gradient(update, tensor.unit, tensor.offset + static_cast<std::int64_t>(i));
        double& m = tensor.m[i];
        double& v = tensor.v[i];
        m = beta1 * m + (1.0 - beta1) * g;
        v = beta2 * v + (1.0 - beta2) * g * g;
        direction[i] = config.eps_inside_sqrt ? m / std::sqrt(v + config.epsilon)
                                              : m / (std::sqrt(v) + config.epsilon);
        direction[i] += (tensor.decl->decays ? config.weight_decay : 0.0) * tensor.p[i];
      }
      double rate = params.learning_rate * tensor.decl->rate_scale;
      if (config.bias_correction) {
        const auto t = static_cast<double>(update);
        rate *= std::sqrt(1.0 - std::pow(beta2, t)) / (1.0 - std::pow(beta1, t));
      }
      const double parameter_norm = norm(tensor.p);
      const double direction_norm = norm(direction);
      const double ratio =
          parameter_norm == 0.0 || direction_norm == 0.0
              ? 1.0
              : std::clamp(parameter_norm / direction_norm, config.min_coeff, config.max_coeff);
      for (std::size_t i = 0; i < direction.size(); ++i) {
        tensor.p[i] -= rate * ratio * direction[i];
      }
    }
  }
  return tensors;
}

}  // namespace

TEST_CASE("LAMB follows the published algorithm whole and in slices", "[optim][lamb]") {
  LabModel model = small_model();
  // A tensor that begins at zero: its ratio is 1 in the first update.
  const auto start = model.start;
  model.start = [&](int unit, std::int64_t i) { return unit == 2 ? 0.0 : start(unit, i); };
  std::vector<OptimizerConfig> configs(5, kLamb);
  configs[1].eps_inside_sqrt = true;
  configs[2].bias_correction = false;
  configs[3].max_coeff = 0.5;
  configs[4].min_coeff = 2.0;
  for (std::size_t c = 0; c < configs.size(); ++c) {
    for (const int ranks : {1, 2, 3, 4}) {
      CAPTURE(c, ranks);
      const LabState state = after_updates(
          model,
          {.config = configs[c], .ranks = ranks, .updates = kUpdates, .params = changing_params});
      check_master(state, reference(model, configs[c]), 4e-6, 4e-7);
    }
  }
}

TEST_CASE("LAMB's slices are within a rounding of the whole", "[optim][lamb]") {
  const LabModel model = small_model();
  LabRun run{.config = kLamb, .compute = DType::kBF16, .params = changing_params};
  const LabState whole = after_updates(model, run);
  for (const int ranks : {2, 3, 4}) {
    run.ranks = ranks;
    const LabState cut = after_updates(model, run);
    CHECK(cut.first_moment == whole.first_moment);
    CHECK(cut.second_moment == whole.second_moment);
    for (std::size_t unit = 0; unit < whole.master.size(); ++unit) {
      for (std::size_t i = 0; i < whole.master[unit].size(); ++i) {
        // fp64 sums in another order can move the ratio by one unit in f32's last place.
        CHECK(cut.master[unit][i] == Approx(whole.master[unit][i]).epsilon(5e-7));
      }
    }
  }
}

TEST_CASE("LAMB sends two numbers a tensor, once an update", "[optim][lamb]") {
  const LabModel model = small_model();
  CollectiveLog log;
  after_updates(model, {.config = kLamb, .ranks = 2, .updates = 3, .params = changing_params},
                &log);
  CHECK(log.entries().size() == 3);
  CHECK(log.count(Op::kAllReduce, Purpose::kOptimizer) == 3);
  CHECK(log.bytes(Op::kAllReduce, Purpose::kOptimizer) == 3 * 8 * 16);  // eight tensors
}

}  // namespace dstrain::test
