#include "engine/config/elasticity.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>

namespace dstrain {
namespace {

using Sizes = std::vector<std::int64_t>;

// DeepSpeed's table; it leaves out some highly composite numbers (840 is followed by 1260).
constexpr std::array<std::int64_t, 38> kHighlyComposite = {
    1,      2,      4,      6,      12,     24,     36,     48,    60,    120,
    180,    240,    360,    720,    840,    1260,   1680,   2520,  5040,  7560,
    10080,  15120,  20160,  25200,  27720,  45360,  50400,  55440, 83160, 110880,
    166320, 221760, 277200, 332640, 498960, 554400, 665280, 720720};

struct Found {
  std::int64_t batch = 0;
  Sizes valid;
};

/// Each micro-batch and their least common multiple, times the largest number of the table that
/// fits.
std::set<std::int64_t> candidates(const Sizes& micro_batches, std::int64_t largest) {
  Sizes bases = micro_batches;
  std::int64_t multiple = 1;
  for (const std::int64_t micro : micro_batches) {
    // A multiple beyond the largest stays as it is, and is left out below.
    if (multiple <= largest) multiple = std::lcm(multiple, micro);
  }
  bases.push_back(multiple);
  std::set<std::int64_t> found;
  for (const std::int64_t base : bases) {
    if (base > largest) continue;
    const auto above =
        std::upper_bound(kHighlyComposite.begin(), kHighlyComposite.end(), largest / base);
    found.insert(base == largest ? base : *std::prev(above) * base);
  }
  return found;
}

/// Numbers of ranks, in [least, most], among which `batch` divides into one of the micro-batches.
Sizes valid_counts(std::int64_t batch,
                   const Sizes& micro_batches,
                   std::int64_t least,
                   std::int64_t most) {
  std::set<std::int64_t> valid;
  for (const std::int64_t micro : micro_batches) {
    if (batch % micro != 0) continue;
    const std::int64_t whole = batch / micro;
    for (std::int64_t divisor = 1; divisor * divisor <= whole; ++divisor) {
      if (whole % divisor != 0) continue;
      for (const std::int64_t count : {divisor, whole / divisor}) {
        if (count >= least && count <= most) valid.insert(count);
      }
    }
  }
  return {valid.begin(), valid.end()};
}

/// Version 0.1: the candidate that the most numbers of ranks can share.
std::optional<Found> version_1(const ElasticityConfig& config,
                               std::int64_t largest,
                               std::int64_t least_ranks,
                               std::int64_t most_ranks) {
  const Sizes& micro_batches = config.micro_batch_sizes;
  const auto [smallest, widest] = std::minmax_element(micro_batches.begin(), micro_batches.end());
  if (*widest > largest) return std::nullopt;
  const std::int64_t least = least_ranks == 0 ? 1 : least_ranks;
  const std::int64_t most = most_ranks == 0 ? largest / *smallest : most_ranks;
  Found best{.batch = *smallest, .valid = {}};
  for (const std::int64_t batch : candidates(micro_batches, largest)) {
    Sizes valid = valid_counts(batch, micro_batches, least, most);
    const bool preferred = config.prefer_larger_batch ? batch > best.batch : batch < best.batch;
    if (valid.size() > best.valid.size() || (valid.size() == best.valid.size() && preferred)) {
      best = {.batch = batch, .valid = std::move(valid)};
    }
  }
  return best;
}

/// Version 0.2: whole nodes; and where this number of ranks is not among those found, the largest
/// batch that it can process.
std::optional<Found> version_2(const ElasticityConfig& config, std::int64_t ranks) {
  const std::int64_t node = config.num_gpus_per_node;
  if (node % config.model_parallel_size != 0) return std::nullopt;
  const std::int64_t node_ranks = node / config.model_parallel_size;  // data-parallel ones
  std::optional<Found> nodes = version_1(config, config.max_train_batch_size / node_ranks,
                                         config.min_gpus / node, config.max_gpus / node);
  if (!nodes) return std::nullopt;
  Found found{.batch = nodes->batch * node_ranks, .valid = std::move(nodes->valid)};
  for (std::int64_t& count : found.valid)
    count *= node_ranks;
  if (std::find(found.valid.begin(), found.valid.end(), ranks / config.model_parallel_size) !=
      found.valid.end()) {
    return found;
  }
  // In floating point, as DeepSpeed does: a fraction of a node counts.
  const double data_parallel =
      static_cast<double>(ranks) / static_cast<double>(node) * static_cast<double>(node_ranks);
  std::optional<double> chosen;
  for (const std::int64_t micro : config.micro_batch_sizes) {
    const double unit = static_cast<double>(micro) * data_parallel;
    const double batch = std::floor(static_cast<double>(config.max_train_batch_size) / unit) * unit;
    if (!chosen || (config.prefer_larger_batch ? batch > *chosen : batch < *chosen)) chosen = batch;
  }
  return Found{.batch = static_cast<std::int64_t>(chosen.value_or(0.0)),
               .valid = {static_cast<std::int64_t>(data_parallel)}};
}

}  // namespace

std::optional<ElasticBatch> elastic_batch(const ElasticityConfig& config, std::int64_t ranks) {
  const bool is_first = config.version == ElasticityVersion::k01;
  const std::optional<Found> found =
      is_first ? version_1(config, config.max_train_batch_size, config.min_gpus, config.max_gpus)
               : version_2(config, ranks);
  if (!found) return std::nullopt;
  ElasticBatch result{
      .train_batch_size = found->batch, .valid_ranks = found->valid, .micro_batch_size = {}};
  if (std::find(found->valid.begin(), found->valid.end(), ranks) == found->valid.end()) {
    return result;
  }
  for (const std::int64_t micro : config.micro_batch_sizes) {
    if (found->batch / ranks % micro == 0) {
      result.micro_batch_size = std::max(result.micro_batch_size.value_or(0), micro);
    }
  }
  return result;
}

}  // namespace dstrain
