// Gradients that are summed by all-to-alls in a block code, against the sum in fp64 and what coding
// can take from it: half a step for every number that is coded, once by each neighbour and, across
// groups, once more by each group.
#include <algorithm>
#include <cmath>

#include <catch2/catch.hpp>

#include "kernels/math/block_code.h"
#include "tests/harness/thread_world.h"
#include "tests/unit/parallel/updating_rank.h"

namespace dstrain::test {
namespace {

constexpr int kRanks = 6;
constexpr std::int64_t kNumels[] = {5000, 37, 9001};
constexpr int kNumUnits = 3;
constexpr BlockCode kFourBits{.bits = 4};

Blueprint three_units() {
  Blueprint blueprint;
  for (const std::int64_t numel : kNumels) {
    blueprint.begin_unit(fmt::format("unit of {}", numel));
    blueprint.add_param({.name = fmt::format("w{}", numel), .shape = {numel}});
  }
  return blueprint;
}

float gradient_of(int rank, int unit, std::int64_t i) {
  return std::sin(static_cast<float>(i * (rank + 2) + 11 * unit)) * (i % 97 == rank ? 8.0F : 0.5F);
}

struct Slices {
  std::vector<Range> owned;
  std::vector<std::vector<float>> masters;
  double norm = 0.0;
};

/// What SGD without anything subtracts from zero at rate 1: the sum of the gradients.
Slices sum_over(Rendezvous& rendezvous, const Mesh& mesh, bool spoilt) {
  const int rank = rendezvous.world_rank();
  const auto group = [&](const char* name, AxisSet axes) {
    const std::vector<int> members = mesh.members(axes, rank);
    return rendezvous.make_group(fmt::format("{} {}", name, members.front()), members);
  };
  const auto data = group("data", kGradientAxes);
  const auto neighbours = group("neighbours", Axis::kDataInside);
  const auto across = group("across", Axis::kDataAcross);
  const bool grouped = mesh.degree(Axis::kDataAcross) > 1;
  Backend backend = make_cpu_backend(1);
  UpdatingRank updating(
      {.blueprint = three_units(),
       .mesh = mesh,
       .rank = rank,
       .placement = zero_placement({.states = true, .gradients = true, .parameters = true}),
       .optimizer = {.kind = OptimizerKind::kSgd, .weight_decay = 0.0, .momentum = 0.0},
       .gradient_code = kFourBits,
       .neighbour_group = grouped ? neighbours.get() : nullptr,
       .across_group = grouped ? across.get() : nullptr},
      backend, {{kGradientAxes, data.get(), data.get()}}, [](int, std::int64_t) { return 0.0F; });
  CHECK(updating.arena().bytes() == updating.memory().bytes());
  Slices slices;
  slices.norm = updating
                    .step(
                        [&](int unit, std::int64_t i) {
                          const bool is_bad = spoilt && rank == 1 && unit == 0 && i == 4321;
                          return is_bad ? std::nanf("") : gradient_of(rank, unit, i);
                        },
                        {.learning_rate = 1.0})
                    .grad_norm;
  for (int unit = 0; unit < kNumUnits; ++unit) {
    slices.owned.push_back(updating.memory().owned(unit));
    const std::vector<std::byte> bytes = updating.bytes_of(RegionKind::kMaster, unit);
    const auto* const values = reinterpret_cast<const float*>(bytes.data());
    slices.masters.emplace_back(values, values + bytes.size() / sizeof(float));
  }
  return slices;
}

/// The largest magnitude in the block of a slice that has element i of it.
double largest_around(const std::vector<double>& slice, std::int64_t i) {
  const std::int64_t begin = i / kFourBits.block() * kFourBits.block();
  const std::int64_t end =
      std::min<std::int64_t>(begin + kFourBits.block(), static_cast<std::int64_t>(slice.size()));
  double largest = 0.0;
  for (std::int64_t k = begin; k < end; ++k) {
    largest = std::max(largest, std::abs(slice[static_cast<std::size_t>(k)]));
  }
  return largest;
}

/// A rank's own gradients in a slice.
std::vector<double> gradients_in(int rank, int unit, Range slice) {
  std::vector<double> values;
  for (std::int64_t i = slice.begin; i < slice.end; ++i) {
    values.push_back(i < kNumels[unit] ? static_cast<double>(gradient_of(rank, unit, i)) : 0.0);
  }
  return values;
}

}  // namespace

TEST_CASE("gradients in 4 bits are off by what coding can take, and by that only",
          "[zero][block_code]") {
  for (const int inside : {1, 2, 3, 6}) {
    const int across = kRanks / inside;
    CAPTURE(inside);
    const Mesh mesh({.data_across = across, .data_inside = inside});
    const std::vector<Slices> ranks = thread_world(
        kRanks, [&](Rendezvous& rendezvous) { return sum_over(rendezvous, mesh, false); });
    double worst = 0.0;  // of what is allowed
    double any = 0.0;
    for (int owner = 0; owner < kRanks; ++owner) {
      const Slices& held = ranks[static_cast<std::size_t>(owner)];
      for (int unit = 0; unit < kNumUnits; ++unit) {
        const Range slice = held.owned[static_cast<std::size_t>(unit)];
        std::vector<std::vector<double>> of_rank;
        for (int rank = 0; rank < kRanks; ++rank) {
          of_rank.push_back(gradients_in(rank, unit, slice));
        }
        std::vector<std::vector<double>> of_group;
        for (int a = 0; a < across; ++a) {
          std::vector<double> sum(static_cast<std::size_t>(slice.size()), 0.0);
          for (int k = 0; k < inside; ++k) {
            const auto& addend = of_rank[static_cast<std::size_t>(a * inside + k)];
            std::transform(sum.begin(), sum.end(), addend.begin(), sum.begin(), std::plus<>());
          }
          of_group.push_back(std::move(sum));
        }
        for (std::int64_t i = 0; i < slice.size() && slice.begin + i < kNumels[unit]; ++i) {
          double exact = 0.0;
          double first = 0.0;  // of steps in the first exchange
          double allowed = 1e-5;
          for (const auto& values : of_rank) {
            exact += values[static_cast<std::size_t>(i)];
            first += largest_around(values, i) / 14.0;
          }
          allowed += first;
          for (const auto& values : of_group) {
            // What is coded again may be larger by what the first exchange put on top.
            if (across > 1) allowed += (largest_around(values, i) + 8.0 * inside / 14.0) / 14.0;
          }
          const float got =
              held.masters[static_cast<std::size_t>(unit)][static_cast<std::size_t>(i)];
          const double error = std::abs(static_cast<double>(-got) - exact);
          worst = std::max(worst, error / allowed);
          any = std::max(any, error);
        }
      }
    }
    CHECK(worst <= 1.0);
    CHECK(any > 1e-3);  // they were coded
  }
}

TEST_CASE("a NaN in one rank's gradients reaches the norm of all, and nothing is updated",
          "[zero][block_code]") {
  for (const int inside : {2, 6}) {
    const Mesh mesh({.data_across = kRanks / inside, .data_inside = inside});
    for (const Slices& slices : thread_world(
             kRanks, [&](Rendezvous& rendezvous) { return sum_over(rendezvous, mesh, true); })) {
      CHECK(std::isnan(slices.norm));
      for (const std::vector<float>& master : slices.masters) {
        CHECK(std::all_of(master.begin(), master.end(), [](float value) { return value == 0.0F; }));
      }
    }
  }
}

}  // namespace dstrain::test
