#include "engine/config/nearest_layout.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

#include "engine/config/arch/family.h"
#include "engine/config/config_json.h"

namespace dstrain {
namespace {

/// Copies of the model over more ranks than this are not looked for.
constexpr std::int64_t kMostRanks = 1 << 20;

Layout asked_of(const Config& config, std::int64_t ranks) {
  return {.tensor = config.tensor_parallel.size, .stages = config.pipeline.stages, .ranks = ranks};
}

/// The most ranks of a copy of the model that the search considers: twice those that exist or are
/// asked for, and as many as a written partition takes.
std::int64_t most_ranks(const Config& config, const Layout& asked) {
  const auto entries = static_cast<std::int64_t>(config.pipeline.partition.size());
  return std::min(kMostRanks, std::max({2 * asked.ranks, 2 * asked.tensor * asked.stages,
                                        asked.tensor * entries}));
}

/// "interleaved" and several chunks a stage need each other, on any layout.
bool contradicts_itself(const PipelineConfig& pipeline) {
  return (pipeline.schedule == ScheduleKind::kInterleaved) != (pipeline.virtual_stages > 1);
}

bool suits_tensors(const Config& config, std::int64_t size) {
  return config.model.num_heads % size == 0 &&  // checked first, because it is quick
         objection_to_size(config.model, size).empty() &&
         (size == 1 || !needs_whole_tensors(config.optimizer.kind));
}

/// A partition that does not cover the model has to be rewritten anyway, and decides nothing.
bool suits_blocks(const Config& config, std::int64_t stages) {
  const std::vector<std::int64_t>& blocks = config.pipeline.partition;
  const std::int64_t chunks = stages * config.pipeline.virtual_stages;
  const bool covers =
      std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0}) == config.model.num_layers;
  return chunks <= config.model.num_layers && (stages > 1 || config.pipeline.virtual_stages == 1) &&
         (!covers || static_cast<std::int64_t>(blocks.size()) == chunks);
}

/// What a rank computes in one step.
struct MicroBatches {
  std::int64_t size = 0;  ///< sequences
  std::int64_t number = 0;
};

/// The batch identity over so many copies of the model; empty where it does not come out even.
std::optional<MicroBatches> solve_batch(const BatchConfig& batch, std::int64_t copies) {
  const auto micro = batch.micro_batch_size;
  const auto accumulation = batch.gradient_accumulation_steps;
  if (!batch.train_batch_size) {
    return MicroBatches{micro.value_or(kDefaultMicroBatch), accumulation.value_or(1)};
  }
  if (*batch.train_batch_size % copies != 0) return std::nullopt;
  const std::int64_t share = *batch.train_batch_size / copies;
  const std::int64_t known = micro ? *micro : accumulation.value_or(1);
  if (share % known != 0) return std::nullopt;
  if (!micro) return MicroBatches{share / known, known};
  if (accumulation && share / known != *accumulation) return std::nullopt;
  return MicroBatches{known, share / known};
}

/// Whether the batch divides over a layout whose degrees suit the model.
bool suits_batch(const Config& config, const Layout& layout) {
  const std::int64_t context = config.context_parallel.size;
  const std::int64_t copies = layout.ranks / (layout.tensor * layout.stages * context);
  const auto micro_batches = solve_batch(config.batch, copies);
  if (!micro_batches) return false;
  const std::int64_t share =
      layout.tensor / std::gcd(config.data.sequence_length / context, layout.tensor);
  const bool tokens_divide =
      !config.tensor_parallel.sequence_parallel || micro_batches->size % share == 0;
  const bool whole_rounds =
      config.pipeline.virtual_stages == 1 || micro_batches->number % layout.stages == 0;
  return tokens_divide && whole_rounds;
}

/// A key for sorting, smallest for the nearest layout. As few as possible of ranks, size and stages
/// change; where equally many change, preferably not the ranks (machines are harder to get than
/// settings), then not the size, then not the stages; then those that change do so as little as
/// possible (ranks by number, degrees by factor), in that order. Of two equally near layouts, the
/// one with fewer ranks comes first, then the one with less of the model on each.
auto distance(const Layout& asked, const Layout& other) {
  const auto factor = [](std::int64_t a, std::int64_t b) {
    return static_cast<double>(std::max(a, b)) / static_cast<double>(std::min(a, b));
  };
  const std::int64_t ranks = std::abs(asked.ranks - other.ranks);
  const double tensor = factor(asked.tensor, other.tensor);
  const double stages = factor(asked.stages, other.stages);
  const int changes = (ranks > 0 ? 1 : 0) + (tensor > 1 ? 1 : 0) + (stages > 1 ? 1 : 0);
  return std::tuple(changes, ranks > 0, tensor > 1, stages > 1, ranks, tensor, stages, other.ranks,
                    -other.tensor, -other.stages);
}

}  // namespace

std::string objection_to_size(const ModelSpec& model, std::int64_t size) {
  const std::int64_t shared = model.num_key_value_heads;
  if (model.num_heads % size != 0) {
    return fmt::format("{} does not divide {} {}, and a rank holds whole heads", size,
                       key_path(model, "num_attention_heads"), model.num_heads);
  }
  if (shared % size != 0 && size % shared != 0) {
    return fmt::format(
        "{} neither divides model.num_key_value_heads {} nor is a multiple of it, and a rank holds "
        "whole heads",
        size, shared);
  }
  for (const WidthKey& key : feed_forward_keys(model)) {
    if (key.value * key.times % size == 0) continue;
    return fmt::format("{} does not divide {} {}{}, of which a rank holds an equal share", size,
                       key.path, key.value, key.times == 1 ? "" : fmt::format(" × {}", key.times));
  }
  return "";
}

std::optional<Layout> nearest_layout(const Config& config, std::int64_t ranks) {
  if (contradicts_itself(config.pipeline)) return std::nullopt;
  const Layout asked = asked_of(config, ranks);
  const std::int64_t most = most_ranks(config, asked);
  std::optional<Layout> nearest;
  for (std::int64_t tensor = 1; tensor <= most; ++tensor) {
    if (!suits_tensors(config, tensor)) continue;
    const std::int64_t most_stages = std::min(most / tensor, config.model.num_layers);
    for (std::int64_t stages = 1; stages <= most_stages; ++stages) {
      if (!suits_blocks(config, stages)) continue;
      const std::int64_t unit = tensor * stages * config.context_parallel.size;
      const std::int64_t below = (ranks - 1) / unit * unit;
      const std::int64_t above = (ranks / unit + 1) * unit;
      for (const std::int64_t count : {ranks, below, above}) {
        const Layout candidate = {.tensor = tensor, .stages = stages, .ranks = count};
        const bool fits = count > 0 && count % unit == 0 && suits_batch(config, candidate);
        if (!fits) continue;
        if (!nearest || distance(asked, candidate) < distance(asked, *nearest)) nearest = candidate;
      }
    }
  }
  return nearest;
}

std::string layout_advice(const Config& config, std::int64_t ranks) {
  if (contradicts_itself(config.pipeline)) return "";
  const std::optional<Layout> nearest = nearest_layout(config, ranks);
  const auto ranks_text = [](std::int64_t count) {
    return fmt::format("{} rank{}", count, count == 1 ? "" : "s");
  };
  if (!nearest) {
    return fmt::format("; with the rest as it is, no layout on {} or a few more or less would do",
                       ranks_text(ranks));
  }
  if (*nearest == asked_of(config, ranks)) return "";
  return fmt::format(
      "; nearest layout that would do: --set tensor_parallel.size={} --set pipeline.stages={} on "
      "{}",
      nearest->tensor, nearest->stages, ranks_text(nearest->ranks));
}

}  // namespace dstrain
