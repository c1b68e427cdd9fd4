// Muon against Jordan et al. 2024 in fp64 on whole tensors.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <catch2/catch.hpp>

#include "engine/optim/orthogonalize.h"
#include "kernels/backend.h"
#include "tests/unit/optim/optimizer_lab.h"

namespace dstrain::test {
namespace {

constexpr std::int64_t kUpdates = 3;
constexpr OptimizerConfig kMuon{.kind = OptimizerKind::kMuon,
                                .learning_rate = 0.1,
                                .beta1 = 0.8,
                                .beta2 = 0.9,
                                .epsilon = 1e-3,
                                .weight_decay = 0.5,
                                .momentum = 0.9,
                                .nesterov = true};

/// Row-major, in fp64.
struct Matrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  Values values;
  [[nodiscard]] double& at(std::int64_t r, std::int64_t c) {
    return values[static_cast<std::size_t>(r * columns + c)];
  }
  [[nodiscard]] double at(std::int64_t r, std::int64_t c) const {
    return values[static_cast<std::size_t>(r * columns + c)];
  }
};

Matrix transposed(const Matrix& a) {
  Matrix t{a.columns, a.rows, Values(a.values.size())};
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t c = 0; c < a.columns; ++c) {
      t.at(c, r) = a.at(r, c);
    }
  }
  return t;
}

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix p{a.rows, b.columns, Values(static_cast<std::size_t>(a.rows * b.columns), 0.0)};
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t k = 0; k < a.columns; ++k) {
      for (std::int64_t c = 0; c < b.columns; ++c) {
        p.at(r, c) += a.at(r, k) * b.at(k, c);
      }
    }
  }
  return p;
}

Matrix sum(double s, const Matrix& a, double t, const Matrix& b) {
  Matrix result = a;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    result.values[i] = s * a.values[i] + t * b.values[i];
  }
  return result;
}

/// As published: a tall matrix is transposed, iterated, and transposed back.
Matrix newton_schulz(const Matrix& u) {
  const bool tall = u.rows > u.columns;
  Matrix x = tall ? transposed(u) : u;
  const double norm =
      std::sqrt(std::inner_product(x.values.begin(), x.values.end(), x.values.begin(), 0.0));
  for (double& value : x.values) {
    value /= norm + 1e-7;
  }
  for (int step = 0; step < 5; ++step) {
    const Matrix a = product(x, transposed(x));
    const Matrix b = sum(-4.7750, a, 2.0315, product(a, a));
    x = sum(3.4445, x, 1.0, product(b, x));
  }
  return tall ? transposed(x) : x;
}

std::vector<ReferenceTensor> reference(const LabModel& model, const OptimizerConfig& config) {
  std::vector<ReferenceTensor> tensors = reference_start(model);
  for (ReferenceTensor& tensor : tensors) {
    const Shape& shape = tensor.decl->shape;
    const double decay = tensor.decl->decays ? config.weight_decay : 0.0;
    for (std::int64_t update = 1; update <= kUpdates; ++update) {
      const UpdateParams params = changing_params(update);
      const double schedule = tensor.decl->rate_scale * params.learning_rate / config.learning_rate;
      const double muon_rate = schedule * config.muon_lr.value_or(config.learning_rate);
      const double adam_rate = schedule * config.adam_lr.value_or(config.learning_rate);
      const double beta1 = params.beta1.value_or(config.beta1);
      const double beta2 = params.beta2.value_or(config.beta2);
      Matrix u{shape[0], tensor.decl->hidden_matrix ? shape[1] : 1, Values(tensor.p.size())};
      for (std::size_t i = 0; i < tensor.p.size(); ++i) {
        const double g =
            params.gradient_scale *
            model.gradient(update, tensor.unit, tensor.offset + static_cast<std::int64_t>(i));
        double& m = tensor.m[i];
        if (tensor.decl->hidden_matrix) {
          m = config.momentum * m + (1.0 - config.momentum) * g;
          u.values[i] = config.nesterov ? (1.0 - config.momentum) * g + config.momentum * m : m;
          continue;
        }
        double& v = tensor.v[i];
        m = beta1 * m + (1.0 - beta1) * g;
        v = beta2 * v + (1.0 - beta2) * g * g;
        const auto t = static_cast<double>(update);
        const double m_hat = m / (1.0 - std::pow(beta1, t));
        const double v_hat = v / (1.0 - std::pow(beta2, t));
        tensor.p[i] -=
            adam_rate * (m_hat / (std::sqrt(v_hat) + config.epsilon) + decay * tensor.p[i]);
      }
      if (tensor.decl->hidden_matrix) {
        const Matrix direction = newton_schulz(u);
        const double scale =
            std::sqrt(std::max(1.0, static_cast<double>(shape[0]) / static_cast<double>(shape[1])));
        for (std::size_t i = 0; i < tensor.p.size(); ++i) {
          tensor.p[i] =
              tensor.p[i] * (1.0 - muon_rate * decay) - muon_rate * scale * direction.values[i];
        }
      }
    }
  }
  return tensors;
}

/// orthogonalize() on the CPU, of one matrix.
Matrix orthogonalized(const Matrix& u, DType dtype) {
  Blueprint blueprint;
  blueprint.begin_unit("u");
  blueprint.add_param({.name = "w", .shape = {u.rows, u.columns}, .hidden_matrix = true});
  const Orthogonalizer orthogonalizer(Orthogonalizer::declare(dtype, blueprint));
  const auto numel = static_cast<std::int64_t>(u.values.size());
  const BufferRef in = blueprint.add_buffer({"in", {numel}, dtype});
  const BufferRef wide = blueprint.add_buffer({"wide", {numel}, DType::kF32});
  const ShardMap shards(blueprint);
  const MemoryPlan plan(blueprint, shards, {.training = false});
  const Backend backend = make_cpu_backend(1);
  Arena arena(blueprint, plan, *backend.device);
  const Site site{.ops = *backend.ops,
                  .device = *backend.device,
                  .stream = backend.device->compute_stream(),
                  .arena = arena};
  const Tensor values = site.buffer(wide);
  std::copy(u.values.begin(), u.values.end(), values.as<float>().begin());
  site.ops.cast(values, site.buffer(in), site.stream);
  const ConstTensor result =
      orthogonalizer.orthogonalize(site, site.buffer(in).view({u.rows, u.columns}));
  site.ops.cast(result.flat(0, numel), values, site.stream);
  return {u.rows, u.columns, Values(values.as<float>().begin(), values.as<float>().end())};
}

Matrix wavy_matrix(std::int64_t rows, std::int64_t columns) {
  Matrix u{rows, columns, {}};
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    u.values.push_back(std::sin(static_cast<double>(i * i + 3 * i)));
  }
  return u;
}

}  // namespace

TEST_CASE("Muon follows the published algorithm whole and in slices", "[optim][muon]") {
  const LabModel model = small_model();
  std::vector<OptimizerConfig> configs(3, kMuon);
  configs[1].nesterov = false;
  configs[2].muon_lr = 0.02;
  configs[2].adam_lr = 0.3;
  for (std::size_t c = 0; c < configs.size(); ++c) {
    for (const int ranks : {1, 4}) {
      CAPTURE(c, ranks);
      const LabState state = after_updates(
          model,
          {.config = configs[c], .ranks = ranks, .updates = kUpdates, .params = changing_params});
      // The iteration grows small singular values, and rounding with them, some 3.4⁵-fold.
      check_master(state, reference(model, configs[c]), 1e-4, 2e-5);
    }
  }
}

TEST_CASE("the iteration brings every singular value near one", "[optim][muon]") {
  for (const auto& [rows, columns] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{6, 6}, {5, 40}, {40, 5}, {1, 9}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      CAPTURE(rows, columns, name_of(dtype));
      const Matrix u = wavy_matrix(rows, columns);
      const Matrix x = orthogonalized(u, dtype);
      const Matrix expected = newton_schulz(u);
      const double tolerance = dtype == DType::kF32 ? 2e-4 : 0.1;
      for (std::size_t i = 0; i < x.values.size(); ++i) {
        CHECK(std::abs(x.values[i] - expected.values[i]) < tolerance);
      }
      // Rows (or columns) of unit length within the polynomial's band, and at right angles within
      // it: X·Xᵀ has eigenvalues in [0.68², 1.2²], wherefore so are its diagonal elements.
      const Matrix wide = rows > columns ? transposed(x) : x;
      const Matrix gram = product(wide, transposed(wide));
      for (std::int64_t r = 0; r < gram.rows; ++r) {
        CHECK(gram.at(r, r) > 0.4);
        CHECK(gram.at(r, r) < 1.5);
      }
    }
  }
}

TEST_CASE("a zero gradient moves nothing but by decay", "[optim][muon]") {
  LabModel model = small_model();
  model.gradient = [](std::int64_t /*update*/, int /*unit*/, std::int64_t /*i*/) { return 0.0; };
  OptimizerConfig config = kMuon;
  config.weight_decay = 0.0;
  const LabState state =
      after_updates(model, {.config = config, .ranks = 2, .params = changing_params});
  check_master(state, reference_start(model), 0.0, 0.0);
}

TEST_CASE("Muon gathers each unit with matrices once an update", "[optim][muon]") {
  const LabModel model = small_model();
  CollectiveLog log;
  LabRun run{.config = kMuon, .ranks = 3, .updates = 2, .params = changing_params};
  after_updates(model, run, &log);
  const std::int64_t padded = 3 * 48;  // of the block's 132 elements
  CHECK(log.entries().size() == 2);
  CHECK(log.bytes(Op::kAllGather, Purpose::kOptimizer) == 2 * padded * 4);
  log.clear();
  run.compute = DType::kBF16;
  after_updates(model, run, &log);
  CHECK(log.bytes(Op::kAllGather, Purpose::kOptimizer) == 2 * padded * 2);
}

}  // namespace dstrain::test
