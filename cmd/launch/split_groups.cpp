#include "cmd/launch/split_groups.h"

#include <cmath>

#include <fmt/format.h>

#include "engine/base/amount_text.h"

namespace dstrain {
namespace {

/// The bytes that a rank sends for one block and micro-batch, forward and backward, over a ring:
/// for N·C elements, an all-reduce of t ranks sends 2·(t-1)/t, a reduce-scatter or all-gather half
/// of that. engine/parallel/tensor_parallel.h says how many there are; recomputation, which adds to
/// them, is not counted.
double bytes_of_block(const Config& config) {
  const double ranks = config.tensor_parallel.size;
  const double passes = config.tensor_parallel.sequence_parallel ? 4 + 6 : 4 * 2;
  const auto elements = static_cast<double>(*config.batch.micro_batch_size *
                                            config.data.sequence_length * config.model.hidden_size);
  return passes * (ranks - 1) / ranks * elements *
         static_cast<double>(size_of(dtype_of(config.precision)));
}

}  // namespace

std::optional<std::string> describe_split_groups(const Config& config,
                                                 std::span<const launcher::Host> hosts) {
  const std::int64_t size = config.tensor_parallel.size;
  const launcher::Host* culprit = nullptr;
  std::int64_t split = 0;
  std::int64_t last_split = -1;  // group
  std::int64_t ranks = 0;
  for (const launcher::Host& host : hosts) {
    const std::int64_t group = ranks / size;  // of this host's first rank
    if (ranks % size != 0 && group != last_split) {
      last_split = group;
      ++split;
    }
    const auto slots = static_cast<std::int64_t>(host.slots.size());
    culprit = culprit == nullptr && slots % size != 0 ? &host : culprit;
    ranks += slots;
  }
  if (split == 0) {
    return std::nullopt;
  }
  const std::int64_t stages = config.pipeline.stages;
  const std::int64_t blocks = (config.model.num_layers + stages - 1) / stages;
  const double bytes = bytes_of_block(config);
  return fmt::format(
      "tensor_parallel.size: {} does not divide host {}'s slots={}, so {} of {} tensor-parallel "
      "groups span hosts and the {} of every block cross the network: a rank sends at least {} a "
      "block, {} for the {} of its stage, each micro-batch; give every host a multiple of {} slots",
      size, culprit->name, culprit->slots.size(), split, ranks / size,
      config.tensor_parallel.sequence_parallel ? "all-gathers and reduce-scatters" : "all-reduces",
      size_text(std::llround(bytes)), size_text(std::llround(bytes * static_cast<double>(blocks))),
      blocks, size);
}

}  // namespace dstrain
