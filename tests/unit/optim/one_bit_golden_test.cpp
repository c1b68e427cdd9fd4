// The optimizers of the 1-bit family on several ranks, with real traffic, compared update by update
// with runs in fp64 (tests/golden/onebit.json, scripts/make_onebit_golden.py).
#include <algorithm>
#include <cmath>
#include <fstream>
#include <mutex>
#include <numeric>
#include <span>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/optim/optimizer.h"
#include "kernels/backend.h"
#include "tests/harness/recording_communicator.h"
#include "tests/harness/thread_world.h"

namespace dstrain::test {
namespace {

using nlohmann::json;
using Row = std::vector<float>;

constexpr double kBound = 1e-6;

/// The largest difference, relative to the largest number of `expected`.
double worst_difference(std::span<const float> row, const Row& expected) {
  REQUIRE(expected.size() == row.size());
  double worst = 0.0;
  double largest = 1e-30;
  for (std::size_t i = 0; i < row.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(row[i]) - expected[i]));
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
  }
  return worst / largest;
}

Blueprint blueprint_of(const std::vector<std::int64_t>& sizes) {
  Blueprint blueprint;
  blueprint.begin_unit("unit");
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    blueprint.add_param({.name = "tensor" + std::to_string(i), .shape = {sizes[i]}});
  }
  return blueprint;
}

/// One rank's memory and optimizer, as an engine has them.
class Rank {
 public:
  Rank(const OptimizerConfig& config,
       const std::vector<std::int64_t>& sizes,
       int ranks,
       Communicator& group)
      : config_(config),
        blueprint_(blueprint_of(sizes)),
        shards_(blueprint_, Mesh({.data_inside = ranks}), group.rank()),
        scratch_(declare_optimizer(config, shards_, DType::kF32, blueprint_)),
        plan_(blueprint_, shards_, options_for(config, ranks, group.rank())),
        backend_(make_cpu_backend(1)),
        arena_(blueprint_, plan_, *backend_.device),
        site_{.ops = *backend_.ops,
              .device = *backend_.device,
              .stream = backend_.device->compute_stream(),
              .arena = arena_},
        optimizer_(make_optimizer({.config = config_,
                                   .blueprint = blueprint_,
                                   .shards = shards_,
                                   .scratch = scratch_,
                                   .groups = {shards_, {{kGradientAxes, &group, nullptr}}},
                                   .signs = plan_.options().signs,
                                   .states = {}})) {}

  [[nodiscard]] Tensor held(RegionKind region) const {
    return arena_.unit(region, 0).flat(0, shards_.numel(0));
  }
  [[nodiscard]] const SignLayout& layout() const { return *plan_.options().signs; }
  [[nodiscard]] Tensor servers_unsent() const { return arena_.unit(RegionKind::kServersUnsent, 0); }
  [[nodiscard]] Optimizer::Numbers numbers() const { return optimizer_->numbers(site_); }

  void begin(const Row& start) {
    const Range whole{0, shards_.numel(0)};
    std::copy(start.begin(), start.end(), arena_.master(0).as<float>().begin());
    if (plan_.has_master(0)) {
      std::copy(start.begin(), start.end(), held(RegionKind::kParameters).as<float>().begin());
    }
    state_ = {.unit = 0,
              .range = whole,
              .gradient = held(RegionKind::kGradients),
              .master = arena_.master(0).flat(0, whole.end),
              .first_moment = held(RegionKind::kFirstMoment),
              .second_moment = held(RegionKind::kSecondMoment)};
    if (plan_.options().third_moment) state_.third_moment = held(RegionKind::kThirdMoment);
    if (plan_.has_master(0)) state_.parameters = held(RegionKind::kParameters);
  }

  /// `gradients`: of all ranks. What sums them in a run is not the optimizer's.
  void update(const std::vector<Row>& gradients,
              std::size_t mine,
              std::int64_t number,
              double rate) {
    const auto to = held(RegionKind::kGradients).as<float>();
    for (std::size_t i = 0; i < to.size(); ++i) {
      double sum = 0.0;
      for (const Row& row : gradients)
        sum += row[i];
      const bool is_summed = travel_of(config_, number) == GradientTravel::kSummed;
      to[i] = is_summed ? static_cast<float>(sum / static_cast<double>(gradients.size()))
                        : gradients[mine][i];
    }
    optimizer_->update(site_, {&state_, 1}, {.learning_rate = rate, .update = number},
                       [](std::size_t /*index*/) {});
  }

  /// Parameters made anew of the state, as after a checkpoint was read.
  void refresh() {
    if (state_.parameters.empty()) return;
    std::fill_n(state_.parameters.as<float>().begin(), shards_.numel(0), NAN);
    optimizer_->refresh_parameters(site_, state_);
  }

 private:
  MemoryOptions options_for(const OptimizerConfig& config, int ranks, int rank) const {
    MemoryOptions options{.walk = {{.unit = 0, .reads = {0}, .writes = {0}}}};
    options.third_moment = *moments_of(config).third_name != '\0';
    options.updates_alone = config.kind == OptimizerKind::kZeroOneAdam;
    options.signs = SignLayout(shards_, ranks, rank);
    return options;
  }

  const OptimizerConfig config_;
  Blueprint blueprint_;
  ShardMap shards_;
  OptimizerScratch scratch_;
  MemoryPlan plan_;
  Backend backend_;
  Arena arena_;
  Site site_;
  std::unique_ptr<Optimizer> optimizer_;
  UnitState state_;
};

/// Runs a golden case on its ranks, calling after(rank, index of the rank, update) behind each
/// update.
template <typename After>
void run_case(const OptimizerConfig& config,
              const json& expected,
              const std::vector<std::int64_t>& sizes,
              const Row& rates,
              After&& after) {
  const int ranks = expected.at("ranks");
  const auto gradients = expected.at("gradients").get<std::vector<std::vector<Row>>>();
  std::mutex one_at_a_time;  // Catch's assertions belong to one thread at a time
  thread_world(ranks, [&](Rendezvous& rendezvous) {
    std::vector<int> members(static_cast<std::size_t>(ranks));
    std::iota(members.begin(), members.end(), 0);
    const auto group = rendezvous.make_group("data", members);
    Rank rank(config, sizes, ranks, *group);
    const auto index = static_cast<std::size_t>(group->rank());
    rank.begin(expected.at("start").get<Row>());
    for (std::size_t k = 0; k < gradients.size(); ++k) {
      rank.update(gradients[k], index, static_cast<std::int64_t>(k) + 1,
                  static_cast<double>(rates[k % rates.size()]));
      const std::lock_guard lock(one_at_a_time);
      after(rank, index, k);
    }
    return true;
  });
}

/// Errors are differences of like numbers, so their last digits are less certain; those of a chunk
/// of little but rounding are small. All together give the measure.
void check_unsent(const Rank& rank, std::size_t index, const json& expected) {
  const auto worker = expected.at("worker_error").get<std::vector<Row>>();
  CHECK(worst_difference(rank.held(RegionKind::kUnsent).as<float>(), worker.at(index)) < 1e-5);
  if (rank.layout().ranks() == 1) return;
  const auto server = expected.at("server_error").get<Row>();
  const double largest = std::abs(*std::max_element(
      server.begin(), server.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }));
  for (const SignLayout::Row& row : rank.layout().rows()) {
    for (std::int64_t i = row.served.begin; i < row.served.end; ++i) {
      const float held =
          rank.servers_unsent()
              .as<float>()[static_cast<std::size_t>(row.serving + i - row.served.begin)];
      CHECK(std::abs(held - server.at(static_cast<std::size_t>(i))) <= 1e-5 * largest);
    }
  }
}

OptimizerConfig config_of(const json& golden, OptimizerKind kind, const json& run) {
  return {.kind = kind,
          .learning_rate = golden.at("lr"),
          .beta1 = golden.at("betas")[0],
          .beta2 = golden.at("betas")[1],
          .epsilon = golden.at("eps"),
          .weight_decay = run.at("weight_decay"),
          .bias_correction = false};
}

json read_golden() {
  return json::parse(std::ifstream("tests/golden/onebit.json"));
}

}  // namespace

TEST_CASE("1-bit Adam takes the golden updates before its variance is frozen and after",
          "[optim][onebit][golden]") {
  const json golden = read_golden();
  REQUIRE(golden.at("adam").at("runs").size() == 6);
  for (const json& run : golden.at("adam").at("runs")) {
    OptimizerConfig config = config_of(golden, OptimizerKind::kOneBitAdam, run);
    config.freeze_step = golden.at("adam").at("freeze_step");
    const std::size_t updates = run.at("gradients").size();
    run_case(config, run, {run.at("elements")}, {golden.at("lr").get<float>()},
             [&](const Rank& rank, std::size_t index, std::size_t k) {
               CHECK(worst_difference(rank.held(RegionKind::kParameters).as<float>(),
                                      run.at("parameters")[k].get<Row>()) < kBound);
               if (k + 1 < updates) return;
               CHECK(worst_difference(rank.held(RegionKind::kFirstMoment).as<float>(),
                                      run.at("momentum").get<Row>()) < kBound);
               check_unsent(rank, index, run);
             });
  }
}

TEST_CASE("0/1 Adam takes the golden updates, each rank its own between agreements",
          "[optim][onebit][golden]") {
  const json golden = read_golden();
  REQUIRE(golden.at("zero_one_adam").at("runs").size() == 7);
  for (const json& run : golden.at("zero_one_adam").at("runs")) {
    OptimizerConfig config = config_of(golden, OptimizerKind::kZeroOneAdam, run);
    config.freeze_step = run.at("var_freeze_step");
    config.var_update_scaler = run.at("var_update_scaler");
    config.local_step_scaler = run.at("local_step_scaler");
    config.local_step_clipper = run.at("local_step_clipper");
    const std::size_t updates = run.at("gradients").size();
    run_case(
        config, run, {run.at("elements")}, run.at("rates").get<Row>(),
        [&](Rank& rank, std::size_t index, std::size_t k) {
          const auto parameters = run.at("parameters")[k].get<std::vector<Row>>();
          const Row& mine = parameters.at(parameters.size() == 1 ? 0 : index);
          CHECK(worst_difference(rank.held(RegionKind::kParameters).as<float>(), mine) < kBound);
          const auto held = rank.held(RegionKind::kParameters).as<float>();
          const Row before(held.begin(), held.end());
          rank.refresh();
          CHECK(std::equal(before.begin(), before.end(), held.begin()));
          if (k + 1 < updates) return;
          CHECK(worst_difference(rank.held(RegionKind::kFirstMoment).as<float>(),
                                 run.at("momentum")[index].get<Row>()) < kBound);
          CHECK(worst_difference(rank.held(RegionKind::kThirdMoment).as<float>(),
                                 run.at("third_moment")[index].get<Row>()) < kBound);
          check_unsent(rank, index, run);
        });
  }
}

TEST_CASE("1-bit LAMB takes the golden updates of one tensor and of several",
          "[optim][onebit][golden]") {
  const json golden = read_golden();
  const json& lamb = golden.at("lamb");
  REQUIRE(lamb.at("runs").size() == 7);
  for (const json& run : lamb.at("runs")) {
    OptimizerConfig config = config_of(golden, OptimizerKind::kOneBitLamb, run);
    config.freeze_step = lamb.at("freeze_step");
    config.coeff_beta = lamb.at("coeff_beta");
    config.max_coeff = lamb.at("max_coeff");
    config.min_coeff = lamb.at("min_coeff");
    config.factor_max = lamb.at("factor_max");
    config.factor_min = lamb.at("factor_min");
    config.factor_threshold = lamb.at("factor_threshold");
    const std::size_t updates = run.at("gradients").size();
    run_case(config, run, run.at("sizes").get<std::vector<std::int64_t>>(),
             {golden.at("lr").get<float>()},
             [&](const Rank& rank, std::size_t index, std::size_t k) {
               CHECK(worst_difference(rank.held(RegionKind::kParameters).as<float>(),
                                      run.at("parameters")[k].get<Row>()) < kBound);
               const Optimizer::Numbers numbers = rank.numbers();
               for (std::size_t t = 0; t < run.at("sizes").size(); ++t) {
                 const double factor =
                     numbers.at("trust ratio and factor of tensor" + std::to_string(t)).at(1);
                 CHECK(factor == Approx(run.at("factors")[k][t].get<double>()).epsilon(kBound));
               }
               if (k + 1 < updates) return;
               for (std::size_t t = 0; t < run.at("sizes").size(); ++t) {
                 const double ratio =
                     numbers.at("trust ratio and factor of tensor" + std::to_string(t)).at(0);
                 CHECK(ratio == Approx(run.at("coefficients")[t].get<double>()).epsilon(kBound));
               }
               CHECK(worst_difference(rank.held(RegionKind::kFirstMoment).as<float>(),
                                      run.at("momentum").get<Row>()) < kBound);
               CHECK(worst_difference(rank.held(RegionKind::kThirdMoment).as<float>(),
                                      run.at("fresh_variance").get<Row>()) < kBound);
               check_unsent(rank, index, run);
             });
  }
}

}  // namespace dstrain::test
