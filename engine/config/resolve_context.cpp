// What ranks that share sequences exchange while they attend, and what that asks of the sequences
// and of the model's heads.
#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "engine/config/json_text.h"
#include "engine/config/resolve_parts.h"

namespace dstrain {
namespace {

constexpr const char* kSize = "context_parallel.size";
constexpr const char* kKind = "context_parallel.kind";
constexpr const char* kUlysses = "context_parallel.ulysses_size";
constexpr const char* kDeepSpeeds = "sequence_parallel_size";
constexpr const char* kMegatrons = "hierarchical_context_parallel_sizes";

/// The heads of a tensor-parallel rank: of queries, and of keys and values.
struct OwnHeads {
  std::int64_t queries;
  std::int64_t keys;
};
OwnHeads own_heads(const Config& config) {
  const std::int64_t tensor = config.tensor_parallel.size;
  return {config.model.num_heads / tensor,
          std::max<std::int64_t>(1, config.model.num_key_value_heads / tensor)};
}

/// Takes DeepSpeed's key over into this program's.
void take_over(ContextParallelConfig& context, Origins& origins) {
  if (!context.ulysses_ranks) return;
  const int ranks = *context.ulysses_ranks;
  const bool differs = (context.size != 1 && context.size != ranks) ||
                       context.kind.value_or(ContextKind::kUlysses) != ContextKind::kUlysses;
  if (differs) {
    throw_config_error(origins[kDeepSpeeds], kDeepSpeeds,
                       fmt::format("{}, which is context_parallel with size {} and kind "
                                   "\"ulysses\", contradicts that block: leave it out",
                                   ranks, ranks),
                       {{ConfigEdit::Kind::kRemove, kDeepSpeeds, ""}});
  }
  context.ulysses_ranks.reset();
  if (ranks == 1) return;
  context.size = ranks;
  context.kind = ContextKind::kUlysses;
  origins[kSize] = fmt::format("derived: {}", kDeepSpeeds);
  origins[kKind] = fmt::format("derived: {}", kDeepSpeeds);
}

/// Takes Megatron's key over: the first size is of neighbours among which heads are dealt.
void take_over_hierarchy(ContextParallelConfig& context, Origins& origins) {
  if (context.hierarchical_sizes.empty()) return;
  const int neighbours = static_cast<int>(context.hierarchical_sizes.at(0));
  const int ranks = neighbours * static_cast<int>(context.hierarchical_sizes.at(1));
  const bool differs = (context.size != 1 && context.size != ranks) ||
                       context.kind.value_or(ContextKind::kUsp) != ContextKind::kUsp ||
                       context.ulysses_size.value_or(neighbours) != neighbours;
  if (differs) {
    throw_config_error(
        origins[kMegatrons], kMegatrons,
        fmt::format("[{}], which is context_parallel with size {}, kind \"usp\" and ulysses_size "
                    "{}, contradicts that block: leave it out",
                    fmt::join(context.hierarchical_sizes, ", "), ranks, neighbours),
        {{ConfigEdit::Kind::kRemove, kMegatrons, ""}});
  }
  context.hierarchical_sizes.clear();
  if (ranks == 1) return;
  context.size = ranks;
  context.kind = ContextKind::kUsp;
  context.ulysses_size = neighbours;
  for (const char* key : {kSize, kKind, kUlysses}) {
    origins[key] = fmt::format("derived: {}", kMegatrons);
  }
}

/// As many neighbours as deal heads within a host.
void find_neighbours(LoadedConfig& loaded, const MachineFacts& facts, Origins& origins) {
  ContextParallelConfig& context = loaded.config.context_parallel;
  const OwnHeads heads = own_heads(loaded.config);
  const int host = facts.ranks_per_host.value_or(context.size * loaded.config.tensor_parallel.size);
  int most = std::clamp(host / loaded.config.tensor_parallel.size, 1, context.size);
  while (context.size % most != 0 || !can_deal_heads(most, heads.queries, heads.keys)) {
    --most;
  }
  context.ulysses_size = most;
  origins[kUlysses] = facts.ranks_per_host
                          ? "derived: as many ranks of a host as deal heads among them"
                          : "derived: as many ranks as deal heads among them, of hosts that are "
                            "not known";
}

void check_heads(const Config& config, Origins& origins) {
  const ContextParallelConfig& context = config.context_parallel;
  const bool is_usp = context.kind == ContextKind::kUsp;
  const std::int64_t ranks = context.heads();
  const OwnHeads heads = own_heads(config);
  const char* path = is_usp ? kUlysses : kSize;
  if (context.size % ranks != 0) {
    throw_config_error(
        origins[path], path,
        fmt::format("{} does not divide {} {}: expected a divisor", ranks, kSize, context.size));
  }
  if (can_deal_heads(ranks, heads.queries, heads.keys)) return;
  std::int64_t fits = ranks;
  while (context.size % fits != 0 || !can_deal_heads(fits, heads.queries, heads.keys)) {
    --fits;
  }
  const std::string of_tensor =
      config.tensor_parallel.size == 1
          ? ""
          : fmt::format(" of each of the {} tensor-parallel ranks", config.tensor_parallel.size);
  throw_config_error(
      origins[path], path,
      fmt::format(
          "{} ranks cannot deal the {} query heads{} and {} key/value heads among them: "
          "every rank attends with as many, and shares a key/value head with neighbours at "
          "most: write {}{}",
          ranks, heads.queries, of_tensor, heads.keys, fits,
          is_usp ? ""
                 : fmt::format(", or {} \"usp\" with {} {}, or \"ring\"", kKind, kUlysses, fits)));
}

void check_sequence(const Config& config, Origins& origins) {
  const std::int64_t unit = config.context_parallel.unit();
  const std::int64_t sequence = config.data.sequence_length;
  if (sequence % unit == 0) return;
  throw_config_error(
      origins["data.sequence_length"], "data.sequence_length",
      fmt::format("{} tokens do not divide among {} {}{}: the nearest lengths that do are {}",
                  sequence, kSize, config.context_parallel.size,
                  unit == config.context_parallel.size ? "" : ", two chunks each in zigzag order",
                  nearest_multiples(sequence, unit)));
}

}  // namespace

void resolve_context(LoadedConfig& loaded, const MachineFacts& facts, Origins& origins) {
  ContextParallelConfig& context = loaded.config.context_parallel;
  take_over(context, origins);
  take_over_hierarchy(context, origins);
  if (context.size == 1 && context.kind) {
    loaded.notices.push_back(
        fmt::format("no effect: {}: {} is 1, so that no ranks share sequences", kKind, kSize));
    context.kind.reset();
  }
  if (context.kind != ContextKind::kUsp && context.ulysses_size) {
    loaded.notices.push_back(fmt::format("no effect: {}: {} is not \"usp\"", kUlysses, kKind));
    context.ulysses_size.reset();
  }
  if (context.size == 1) return;
  if (!context.kind) {
    context.kind = ContextKind::kRing;
    origins[kKind] = "default";
  }
  const std::int64_t tensor = loaded.config.tensor_parallel.size;
  const bool has_heads = loaded.config.model.num_heads % tensor == 0;  // else it is refused later
  if (has_heads && context.kind == ContextKind::kUsp && !context.ulysses_size) {
    find_neighbours(loaded, facts, origins);
  }
  if (has_heads) check_heads(loaded.config, origins);
  check_sequence(loaded.config, origins);
}

}  // namespace dstrain
