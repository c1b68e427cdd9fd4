#include "engine/plan/stage_partition.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/config/arch/model_counts.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

using Costs = std::span<const std::int64_t>;

std::int64_t sum_of(Costs costs) {
  return std::accumulate(costs.begin(), costs.end(), std::int64_t{0});
}

/// The number of stages that these blocks take if each is filled up to `most`.
int stages_filled(Costs costs, std::int64_t most) {
  int stages = 1;
  std::int64_t filled = 0;
  for (const std::int64_t cost : costs) {
    if (filled + cost > most) {
      ++stages;
      filled = 0;
    }
    filled += cost;
  }
  return stages;
}

/// What the most expensive of so many stages costs at least.
std::int64_t cheapest_maximum(Costs costs, int stages) {
  std::int64_t low = *std::max_element(costs.begin(), costs.end());
  std::int64_t high = sum_of(costs);
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (stages_filled(costs, middle) <= stages) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/// Blocks of the first of so many stages, none of which is to cost more than `most`: as many as
/// stay within the mean, so that what does not come out even goes to later stages, as the first
/// ones hold most micro-batches in flight; more where the others could not take the rest.
std::size_t blocks_of_first(Costs costs, int stages, std::int64_t most) {
  const std::int64_t all = sum_of(costs);
  const std::size_t at_most = costs.size() - static_cast<std::size_t>(stages - 1);
  std::size_t blocks = 1;
  std::int64_t taken = costs[0];
  while (blocks < at_most && ((taken + costs[blocks]) * stages <= all ||
                              stages_filled(costs.subspan(blocks), most) > stages - 1)) {
    taken += costs[blocks];
    ++blocks;
  }
  return blocks;
}

}  // namespace

std::vector<std::int64_t> balanced_partition(const ModelSpec& model,
                                             std::int64_t sequence_length,
                                             int stages) {
  const Architecture architecture(model);
  std::vector<std::int64_t> costs;
  for (const LayerSpec& layer : architecture.layers) {
    costs.push_back(std::llround(block_flops_per_token(architecture, layer, sequence_length)));
  }
  return balanced_partition(costs, std::llround(head_flops_per_token(architecture)), stages);
}

std::vector<std::int64_t> balanced_partition(std::span<const std::int64_t> block_costs,
                                             std::int64_t head_cost,
                                             int stages) {
  const auto blocks = static_cast<std::int64_t>(block_costs.size());
  check(1 <= stages && stages <= blocks, "{} blocks for {} stages", blocks, stages);
  if (stages == 1) {
    return {blocks};
  }
  // The last stage has as few blocks as keep the most expensive one as cheap as can be.
  const int others = stages - 1;
  Costs rest;
  std::int64_t best_cost = 0;
  std::int64_t most = 0;  // of the stages before it
  for (std::size_t before = block_costs.size() - 1; before >= static_cast<std::size_t>(others);
       --before) {
    const std::int64_t last_cost = sum_of(block_costs.subspan(before)) + head_cost;
    if (!rest.empty() && last_cost >= best_cost) {
      break;
    }
    const std::int64_t maximum = cheapest_maximum(block_costs.first(before), others);
    const std::int64_t cost = std::max(maximum, last_cost);
    if (rest.empty() || cost < best_cost) {
      rest = block_costs.first(before);
      best_cost = cost;
      most = maximum;
    }
  }
  std::vector<std::int64_t> partition;
  const auto last = blocks - static_cast<std::int64_t>(rest.size());
  for (int left = others; left > 0; --left) {
    const std::size_t taken = left == 1 ? rest.size() : blocks_of_first(rest, left, most);
    partition.push_back(static_cast<std::int64_t>(taken));
    rest = rest.subspan(taken);
  }
  partition.push_back(last);
  return partition;
}

}  // namespace dstrain
