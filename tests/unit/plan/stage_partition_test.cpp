// Blocks shared out over stages, against every way of sharing them out.
#include "engine/plan/stage_partition.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/core/check.h"

namespace dstrain {
namespace {

using Blocks = std::vector<std::int64_t>;

/// What the most expensive stage costs.
std::int64_t maximum_of(const Blocks& partition, const Blocks& costs, std::int64_t head) {
  std::int64_t maximum = 0;
  auto block = costs.begin();
  for (std::size_t stage = 0; stage < partition.size(); ++stage) {
    const auto end = block + partition[stage];
    const std::int64_t extra = stage + 1 == partition.size() ? head : 0;
    maximum = std::max(maximum, std::accumulate(block, end, extra));
    block = end;
  }
  return maximum;
}

/// Of all partitions, tried one by one.
std::int64_t least_maximum(const Blocks& costs, std::int64_t head, int stages) {
  const std::size_t borders = costs.size() - 1;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (unsigned cuts = 0; cuts < 1U << borders; ++cuts) {
    Blocks partition{1};
    for (std::size_t border = 0; border < borders; ++border) {
      if ((cuts >> border & 1U) != 0) {
        partition.push_back(1);
      } else {
        ++partition.back();
      }
    }
    if (partition.size() == static_cast<std::size_t>(stages)) {
      least = std::min(least, maximum_of(partition, costs, head));
    }
  }
  return least;
}

/// Equal blocks in closed form: the last stage has as few as keep the largest of the others, which
/// share evenly and the later ones more, and the last with the head as cheap as can be.
Blocks partition_of_equal(std::int64_t blocks, std::int64_t cost, std::int64_t head, int stages) {
  const std::int64_t others = stages - 1;
  if (others == 0) return {blocks};
  const auto maximum = [&](std::int64_t last) {
    return std::max((blocks - last + others - 1) / others * cost, last * cost + head);
  };
  std::int64_t last = 1;
  for (std::int64_t more = 2; more <= blocks - others; ++more) {
    last = maximum(more) < maximum(last) ? more : last;
  }
  const std::int64_t even = (blocks - last) / others;
  const std::int64_t rest = (blocks - last) % others;
  Blocks partition(static_cast<std::size_t>(others - rest), even);
  partition.insert(partition.end(), static_cast<std::size_t>(rest), even + 1);
  partition.push_back(last);
  return partition;
}

}  // namespace

TEST_CASE("no way of sharing out unequal blocks has a cheaper most expensive stage",
          "[plan][pipeline]") {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    Blocks costs(std::uniform_int_distribution<std::size_t>(1, 10)(random));
    for (std::int64_t& cost : costs) {
      cost = std::uniform_int_distribution<std::int64_t>(1, 12)(random);
    }
    const std::int64_t head = std::uniform_int_distribution<std::int64_t>(0, 20)(random);
    for (int stages = 1; stages <= static_cast<int>(costs.size()); ++stages) {
      CAPTURE(costs, head, stages);
      const Blocks partition = balanced_partition(costs, head, stages);
      REQUIRE(partition.size() == static_cast<std::size_t>(stages));
      CHECK(*std::min_element(partition.begin(), partition.end()) >= 1);
      CHECK(std::accumulate(partition.begin(), partition.end(), std::int64_t{0}) ==
            static_cast<std::int64_t>(costs.size()));
      CHECK(maximum_of(partition, costs, head) == least_maximum(costs, head, stages));
    }
  }
}

TEST_CASE("equal blocks are shared out evenly, the later stages first with what is left",
          "[plan][pipeline]") {
  CHECK(balanced_partition(Blocks(8, 5), 0, 3) == Blocks{3, 3, 2});
  CHECK(balanced_partition(Blocks(8, 5), 10, 3) == Blocks{3, 4, 1});
  for (std::int64_t blocks = 1; blocks <= 26; ++blocks) {
    for (const std::int64_t head : {0, 1, 3, 6, 7, 12, 100}) {
      for (int stages = 1; stages <= blocks; ++stages) {
        CAPTURE(blocks, head, stages);
        CHECK(balanced_partition(Blocks(static_cast<std::size_t>(blocks), 6), head, stages) ==
              partition_of_equal(blocks, 6, head, stages));
      }
    }
  }
}

TEST_CASE("blocks whose attention has a window count as the less that they compute",
          "[plan][pipeline]") {
  // By hand: 8·64 weights take 6 FLOPs each, 3072; attention over 2048 positions, of which half are
  // seen, 12·8·1024 = 98304, over a window of 16 not quite 12·8·16.
  ModelSpec model{.vocab_size = 4,
                  .hidden_size = 8,
                  .num_layers = 6,
                  .num_heads = 1,
                  .num_key_value_heads = 1,
                  .head_dim = 8,
                  .intermediate_size = 16,
                  .max_positions = 2048};
  model.attention_window = 16;
  model.windowed_layers = {true, true, true, true, true, false};
  CHECK(balanced_partition(model, 2048, 2) == Blocks{5, 1});
  model.windowed_layers = {false, true, true, true, true, true};
  CHECK(balanced_partition(model, 2048, 2) == Blocks{1, 5});
  CHECK(balanced_partition(model, 2048, 3) == Blocks{1, 4, 1});
  model.attention_window = 0;
  CHECK(balanced_partition(model, 2048, 2) == Blocks{3, 3});
}

TEST_CASE("more stages than blocks are refused", "[plan][pipeline]") {
  CHECK_THROWS_AS(balanced_partition(Blocks(3, 1), 0, 4), InternalError);
}

}  // namespace dstrain
