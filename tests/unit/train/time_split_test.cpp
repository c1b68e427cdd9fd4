// Where a step's time is said to have gone, for ranks whose times are known.
#include "engine/train/time_split.h"

#include <numeric>
#include <random>

#include <catch2/catch.hpp>

namespace dstrain {
namespace {

constexpr auto at(WaitFor whom) {
  return static_cast<std::size_t>(whom);
}

RankTime time_of(double computing, double data, const std::array<double, kWaitsFor>& waits) {
  return {.total = computing + data + std::accumulate(waits.begin(), waits.end(), 0.0),
          .data = data,
          .waits = waits};
}

double sum_of(const TimeSplit& split) {
  return split.compute + split.data + split.pipeline + split.straggler + split.rest +
         std::accumulate(split.communication.begin(), split.communication.end(), 0.0);
}

}  // namespace

TEST_CASE("what all members of a group wait at least is its transfer, the rest is for the slowest",
          "[metrics]") {
  const Mesh mesh({.data_inside = 2, .tensor = 2});  // ranks 0 1 | 2 3
  std::vector<RankTime> ranks;
  for (const double computing : {5.0, 5.0, 5.0, 8.0}) {
    std::array<double, kWaitsFor> waits{};
    waits[at(WaitFor::kTensor)] = 1.0;
    waits[at(WaitFor::kData)] = 2.0 + (8.0 - computing);
    ranks.push_back(time_of(computing, 0.5, waits));
  }
  ranks[2].waits[at(WaitFor::kTensor)] = 4.0;  // for rank 3, before both meet the others
  ranks[2].waits[at(WaitFor::kData)] = 2.0;
  const TimeSplit split = split_time(mesh, ranks, 12.0);
  CHECK(split.compute == Approx(23.0 / 4));
  CHECK(split.data == Approx(0.5));
  CHECK(split.communication[at(WaitFor::kTensor)] == Approx(1.0));
  CHECK(split.communication[at(WaitFor::kData)] == Approx(2.0));
  CHECK(split.straggler == Approx((3.0 + 3.0 + 3.0) / 4));
  CHECK(split.rest == Approx(0.5));
  CHECK(split.slowest_rank == 3);
  CHECK(split.slower_by == Approx(0.6));
  CHECK(sum_of(split) == Approx(12.0));
}

TEST_CASE("stages that wait for each other are a pipeline's bubble, not stragglers", "[metrics]") {
  const Mesh mesh({.pipeline = 2});
  std::array<double, kWaitsFor> first{};
  std::array<double, kWaitsFor> second{};
  first[at(WaitFor::kPipeline)] = 1.0;
  second[at(WaitFor::kPipeline)] = 3.0;
  const TimeSplit split =
      split_time(mesh, {time_of(6.0, 0.0, first), time_of(4.0, 0.0, second)}, 7.0);
  CHECK(split.pipeline == Approx(2.0));
  CHECK(split.straggler == Approx(0.0));
  CHECK(split.slowest_rank == 0);
  CHECK(split.slower_by == Approx(0.5));
  CHECK(sum_of(split) == Approx(7.0));
}

TEST_CASE("one rank waits for nobody, and is not slower than anybody", "[metrics]") {
  const TimeSplit split = split_time(Mesh({}), {time_of(3.0, 1.0, {})}, 4.25);
  CHECK(split.compute == Approx(3.0));
  CHECK(split.rest == Approx(0.25));
  CHECK(split.slower_by == 0.0);
  CHECK(sum_of(split) == Approx(4.25));
}

TEST_CASE("the parts of a step's time add up to it, whatever the layout", "[metrics]") {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> seconds(0.0, 1.0);
  for (const MeshDegrees degrees :
       {MeshDegrees{}, MeshDegrees{.data_across = 2, .data_inside = 2},
        MeshDegrees{.pipeline = 2, .data_inside = 2, .tensor = 2},
        MeshDegrees{.data_inside = 2, .context_ring = 2, .context_heads = 2},
        MeshDegrees{.pipeline = 3, .data_inside = 4, .tensor = 2, .expert = 4}}) {
    const Mesh mesh(degrees);
    std::vector<RankTime> ranks;
    double last = 0.0;
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      std::array<double, kWaitsFor> waits{};
      for (double& wait : waits)
        wait = seconds(random);
      ranks.push_back(time_of(seconds(random), seconds(random), waits));
      last = std::max(last, ranks.back().total);
    }
    const TimeSplit split = split_time(mesh, ranks, last + 0.125);
    CHECK(sum_of(split) == Approx(last + 0.125));
    CHECK(split.rest == Approx(0.125));
  }
}

}  // namespace dstrain
