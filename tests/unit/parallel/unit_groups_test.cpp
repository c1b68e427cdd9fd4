// Units of one model that different sets of ranks have: a dense unit on all four, experts on two
// each. Slices, the sums of gradients and the norm follow unit by unit.
#include <cmath>

#include <catch2/catch.hpp>

#include "tests/harness/thread_world.h"
#include "tests/unit/parallel/updating_rank.h"

namespace dstrain::test {
namespace {

constexpr int kRanks = 4;
constexpr int kDense = 0;
constexpr int kExperts = 1;
constexpr std::int64_t kDenseNumel = 37;
constexpr std::int64_t kExpertNumel = 21;
// Every rank sees other data; ranks 0 and 2 have one half of the experts, 1 and 3 the other.
const Mesh kMesh({.data_inside = kRanks, .expert = 2});

Blueprint dense_and_experts() {
  Blueprint blueprint;
  blueprint.begin_unit("dense");
  blueprint.add_param({.name = "attention", .shape = {kDenseNumel}});
  blueprint.begin_unit("experts", Axis::kExpertData);
  blueprint.add_param({.name = "experts", .shape = {kExpertNumel}});
  return blueprint;
}

float start_of(int rank, int unit, std::int64_t i) {
  const int experts = unit == kExperts ? rank % 2 : 0;
  return std::cos(static_cast<float>(7 * i + 3 * unit + 5 * experts));
}

/// The parts of all ranks are those of the sum.
float gradient_of(int rank, int unit, std::int64_t i) {
  return 0.01F * std::sin(static_cast<float>(i * i + 11 * unit + 2 * rank));
}

/// The sum over the ranks that have the unit as `rank` has it.
double sum_of(int rank, int unit, std::int64_t i) {
  double sum = 0.0;
  for (int other = 0; other < kRanks; ++other) {
    const bool has_it = unit == kDense || other % 2 == rank % 2;
    sum += has_it ? static_cast<double>(gradient_of(other, unit, i)) : 0.0;
  }
  return sum;
}

double norm_of_all() {
  double squares = 0.0;
  for (std::int64_t i = 0; i < kDenseNumel; ++i) {
    squares += std::pow(sum_of(0, kDense, i), 2);
  }
  for (const int experts : {0, 1}) {
    for (std::int64_t i = 0; i < kExpertNumel; ++i) {
      squares += std::pow(sum_of(experts, kExperts, i), 2);
    }
  }
  return std::sqrt(squares);
}

struct Outcome {
  double norm = 0.0;
  std::vector<std::vector<float>> masters;  ///< by unit: what this rank updates
  std::vector<Range> owned;
};

Outcome update_once(Rendezvous& rendezvous, int stage, double clipping, OptimizerKind kind) {
  const int rank = rendezvous.world_rank();
  const auto group = [&](const std::string& name, AxisSet axes) {
    const std::vector<int> members = kMesh.members(axes, rank);
    return rendezvous.make_group(fmt::format("{} {}", name, members.front()), members);
  };
  const Placement placement = zero_placement(cuts_of(stage));
  const auto world = group("world", kAllAxes);
  const auto data = group("data", kGradientAxes);
  const auto expert_data = group("expert data", Axis::kExpertData);
  const auto experts = group("experts", Axis::kExpert);
  // Whole states: a group's sum is taken over one of each copy, who hold other parts.
  const bool cut = placement.states.is_cut();
  Backend backend = make_cpu_backend(1);
  UpdatingRank updating({.blueprint = dense_and_experts(),
                         .mesh = kMesh,
                         .rank = rank,
                         .placement = placement,
                         .optimizer = {.kind = kind, .weight_decay = 0.0, .momentum = 0.0}},
                        backend,
                        {{kGradientAxes, data.get(), cut ? world.get() : nullptr},
                         {Axis::kExpertData, expert_data.get(), cut ? world.get() : experts.get()}},
                        [&](int unit, std::int64_t i) { return start_of(rank, unit, i); });
  REQUIRE(updating.shards().num_slices(kDense) == 4);
  REQUIRE(updating.shards().num_slices(kExperts) == 2);
  Outcome outcome;
  outcome.norm = updating
                     .step([&](int unit, std::int64_t i) { return gradient_of(rank, unit, i); },
                           {.learning_rate = 0.5, .gradient_clipping = clipping})
                     .grad_norm;
  for (int unit = 0; unit < 2; ++unit) {
    const std::vector<std::byte> bytes = updating.bytes_of(RegionKind::kMaster, unit);
    const auto* const values = reinterpret_cast<const float*>(bytes.data());
    outcome.masters.emplace_back(values, values + bytes.size() / sizeof(float));
    outcome.owned.push_back(updating.memory().owned(unit));
  }
  return outcome;
}

TEST_CASE("units that other ranks have are summed, cut and counted among those ranks", "[zero]") {
  const double norm = norm_of_all();
  for (const int stage : kZeroStages) {
    for (const double clipping : {0.0, 0.05}) {
      const std::vector<Outcome> ranks = thread_world(kRanks, [&](Rendezvous& rendezvous) {
        return update_once(rendezvous, stage, clipping, OptimizerKind::kSgd);
      });
      const double factor = clipping > 0.0 ? clipping / (norm + 1e-6) : 1.0;
      REQUIRE(factor <= 1.0);
      std::vector<int> dense(kDenseNumel);
      std::vector<int> experts(2 * kExpertNumel);
      for (int rank = 0; rank < kRanks; ++rank) {
        INFO("stage " << stage << ", clipping " << clipping << ", rank " << rank);
        const Outcome& outcome = ranks[static_cast<std::size_t>(rank)];
        CHECK(outcome.norm == Approx(norm).epsilon(1e-5));
        for (const int unit : {kDense, kExperts}) {
          const std::int64_t numel = unit == kDense ? kDenseNumel : kExpertNumel;
          const Range owned = outcome.owned[static_cast<std::size_t>(unit)];
          for (std::int64_t i = owned.begin; i < std::min(owned.end, numel); ++i) {
            const double expected =
                static_cast<double>(start_of(rank, unit, i)) - 0.5 * factor * sum_of(rank, unit, i);
            const float got = outcome.masters[static_cast<std::size_t>(unit)]
                                             [static_cast<std::size_t>(i - owned.begin)];
            REQUIRE(static_cast<double>(got) == Approx(expected).epsilon(1e-5).margin(1e-6));
            ++(unit == kDense ? dense.at(static_cast<std::size_t>(i))
                              : experts.at(static_cast<std::size_t>(i + rank % 2 * kExpertNumel)));
          }
        }
      }
      // Cut, every element is updated by one rank; whole, by all that have it.
      const bool cut = stage > 0;
      CHECK(std::all_of(dense.begin(), dense.end(), [&](int n) { return n == (cut ? 1 : 4); }));
      CHECK(std::all_of(experts.begin(), experts.end(), [&](int n) { return n == (cut ? 1 : 2); }));
    }
  }
}

TEST_CASE("LAMB's norms of a tensor go round among the ranks that have it", "[zero]") {
  const std::vector<Outcome> whole = thread_world(kRanks, [](Rendezvous& rendezvous) {
    return update_once(rendezvous, 0, 0.0, OptimizerKind::kLamb);
  });
  const std::vector<Outcome> cut = thread_world(kRanks, [](Rendezvous& rendezvous) {
    return update_once(rendezvous, 2, 0.0, OptimizerKind::kLamb);
  });
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    for (const std::size_t unit : {kDense, kExperts}) {
      const auto numel = unit == kDense ? kDenseNumel : kExpertNumel;
      const Range owned = cut[rank].owned[unit];
      for (std::int64_t i = owned.begin; i < std::min(owned.end, numel); ++i) {
        REQUIRE(static_cast<double>(
                    cut[rank].masters[unit][static_cast<std::size_t>(i - owned.begin)]) ==
                Approx(static_cast<double>(whole[rank].masters[unit][static_cast<std::size_t>(i)]))
                    .epsilon(1e-5));
      }
    }
  }
}

}  // namespace
}  // namespace dstrain::test
