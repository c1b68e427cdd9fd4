// Checks where ZeRO's blocks want memory to be: outside the device, once it is known what the ranks
// compute on, and a second time or once for every few ranks, once it is known how many they are.
#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "engine/config/json_text.h"
#include "engine/config/resolve_parts.h"
#include "engine/config/zero_stage.h"

namespace dstrain {
namespace {

const std::string kStates = "zero_optimization.offload_optimizer.";
const std::string kParameters = "zero_optimization.offload_param.";

/// Where a value was written, for an error, as far as it was.
std::string where_of(const Origins& origins, const std::string& path) {
  const auto found = origins.find(path);
  return found == origins.end() ? "" : found->second;
}

/// Parameters and states lie in one file: one folder, which either block may name.
void join_paths(Config& config, const Origins& origins) {
  std::string& states = config.offload.states_path;
  const std::string& parameters = config.offload.parameters_path;
  if (parameters.empty() || parameters == states) return;
  if (!states.empty()) {
    throw_config_error(
        where_of(origins, kParameters + "nvme_path"), kParameters + "nvme_path",
        fmt::format("parameters and states lie in one file, and {}nvme_path is "
                    "\"{}\": name the same folder",
                    kStates, states),
        {{ConfigEdit::Kind::kSet, kParameters + "nvme_path", fmt::format("\"{}\"", states)}});
  }
  states = parameters;
}

void check_states_on_disk(const Config& config, const Origins& origins) {
  if (config.offload.states_path.empty()) {
    throw_config_error(where_of(origins, kStates + "device"), kStates + "nvme_path",
                       "missing: name a folder on a disk of every host, to which optimizer states "
                       "are offloaded");
  }
  if (config.checkpoint.async) {
    throw_config_error(
        where_of(origins, "checkpoint.async"), "checkpoint.async",
        "copies all states to memory, which does not go with states that are offloaded to a disk",
        {{ConfigEdit::Kind::kSet, "checkpoint.async", "false"}});
  }
}

void tell_no_effect(LoadedConfig& loaded, const std::string& block) {
  loaded.notices.push_back(
      fmt::format("no effect: {}device: \"cpu\" is where CPUs compute: there is no other memory to "
                  "offload to but a disk (\"nvme\")",
                  block));
}

/// DeepSpeed takes it below stage 3 too, where it has no effect.
void check_parameters(LoadedConfig& loaded, const Origins& origins, bool states_leave) {
  const Config& config = loaded.config;
  const std::string key = kParameters + "device";
  const auto refuse = [&](std::string why, ConfigEdit mend) {
    throw_config_error(where_of(origins, key), key, std::move(why), {std::move(mend)});
  };
  if (config.offload.parameters == OffloadTo::kNone) return;
  if (!cuts_of(config.zero.stage).parameters) {
    loaded.notices.push_back(fmt::format(
        "no effect: {}: parameters are offloaded in ZeRO's stage 3, and the stage is {}", key,
        config.zero.stage));
  } else if (config.offload.parameters == OffloadTo::kDisk &&
             config.offload.states != OffloadTo::kDisk) {
    refuse(
        "parameters go to a disk together with the optimizer's states, which are larger: offload "
        "these to \"nvme\" too",
        {ConfigEdit::Kind::kSet, kStates + "device", "\"nvme\""});
  } else if (config.offload.parameters == OffloadTo::kHost &&
             config.training.device == DeviceChoice::kCpu) {
    tell_no_effect(loaded, kParameters);
  } else if (!states_leave) {
    refuse("parameters leave the device together with the optimizer's states: offload these too",
           {ConfigEdit::Kind::kSet, kStates + "device", "\"cpu\""});
  } else if (config.offload.states_ratio < 1.0) {
    refuse(fmt::format("parameters leave the device together with the optimizer's states, and "
                       "{}ratio keeps some of these there: write 1.0",
                       kStates),
           {ConfigEdit::Kind::kSet, kStates + "ratio", "1.0"});
  }
}

/// `ranks` have the same parameters, neighbours among them the same samples too, so that what `few`
/// of them do includes all ranks that share a sequence.
void check_divides(const std::string& key,
                   std::int64_t few,
                   std::int64_t ranks,
                   std::int64_t context,
                   const Origins& origins) {
  const auto is_right = [&](std::int64_t number) {
    return ranks % number == 0 && number % context == 0;
  };
  if (is_right(few)) return;
  std::int64_t nearest = std::min(few, ranks);
  while (nearest > context && !is_right(nearest)) {
    --nearest;
  }
  nearest = std::max(nearest, context);
  const std::string sharing =
      context == 1
          ? ""
          : fmt::format(", of which context_parallel.size {} share each sequence", context);
  throw_config_error(where_of(origins, key), key,
                     fmt::format("{} does not divide the {} data-parallel rank{}{}: write {}", few,
                                 ranks, ranks == 1 ? "" : "s", sharing, nearest),
                     {{ConfigEdit::Kind::kSet, key, fmt::format("{}", nearest)}});
}

/// The data-parallel ranks of a host, where every host has as many, of one stage of the model; 1
/// where that is not so, where all are on one host, or where nothing is known.
int neighbours_on_host(const Config& config,
                       std::int64_t data_parallel,
                       const MachineFacts& facts) {
  const int tensor = config.tensor_parallel.size;
  const int ranks = facts.ranks_per_host.value_or(0);
  const int neighbours = ranks / tensor;
  const bool divides = neighbours > 0 && ranks % tensor == 0 &&
                       neighbours % config.context_parallel.size == 0 &&
                       data_parallel % neighbours == 0;
  return divides && neighbours < data_parallel ? neighbours : 1;
}

}  // namespace

void resolve_second_copy(LoadedConfig& loaded, std::int64_t data_parallel, Origins& origins) {
  const std::string key = "zero_optimization.zero_hpz_partition_size";
  const std::int64_t few = loaded.config.zero.secondary_ranks;
  if (!cuts_of(loaded.config.zero.stage).parameters || few == 1) return;
  if (few >= data_parallel) {
    loaded.notices.push_back(
        fmt::format("no effect: {}: {} ranks would hold a second copy of what {} data-parallel "
                    "rank{} hold once",
                    key, few, data_parallel, data_parallel == 1 ? "" : "s"));
    return;
  }
  check_divides(key, few, data_parallel, loaded.config.context_parallel.size, origins);
}

void resolve_shard_groups(const LoadedConfig& loaded,
                          std::int64_t data_parallel,
                          const Origins& origins) {
  const std::string key = "zero_optimization.mics_shard_size";
  const ZeroConfig& zero = loaded.config.zero;
  if (!cuts_of(zero.stage).parameters || zero.shard_ranks < 1) return;
  if (zero.secondary_ranks > 1) {
    throw_config_error(where_of(origins, key), key,
                       "groups that have all parameters among them (MiCS) need no second copy of "
                       "them (zero_hpz_partition_size): write -1 here or 1 there",
                       {{ConfigEdit::Kind::kSet, key, "-1"}});
  }
  check_divides(key, zero.shard_ranks, data_parallel, loaded.config.context_parallel.size, origins);
}

void resolve_quantized_gradients(LoadedConfig& loaded,
                                 std::int64_t data_parallel,
                                 const MachineFacts& facts,
                                 Origins& origins) {
  const std::string key = "zero_optimization.zero_qgz_partition_size";
  ZeroConfig& zero = loaded.config.zero;
  if (!cuts_of(zero.stage).parameters || !zero.quantized_gradients) return;
  if (zero.shard_ranks >= 1) {
    if (zero.gradient_ranks.value_or(1) > 1) {
      throw_config_error(where_of(origins, key), key,
                         fmt::format("{}, with mics_shard_size, whose groups add up what is theirs "
                                     "among all their ranks: leave it out",
                                     *zero.gradient_ranks),
                         {{ConfigEdit::Kind::kRemove, key, ""}});
    }
    if (!zero.gradient_ranks) origins[key] = "derived: the groups of mics_shard_size";
    zero.gradient_ranks = 1;
    return;
  }
  const bool has_copy = zero.secondary_ranks > 1 && zero.secondary_ranks < data_parallel;
  if (!zero.gradient_ranks) {
    const int here = neighbours_on_host(loaded.config, data_parallel, facts);
    zero.gradient_ranks = has_copy ? zero.secondary_ranks : here;
    origins[key] =
        has_copy ? "derived: those of zero_hpz_partition_size"
        : here > 1
            ? "derived: the data-parallel ranks of a host"
            : "derived: no neighbours are known, which takes several hosts with as many ranks "
              "each, more than one";
    return;
  }
  const int few = *zero.gradient_ranks;
  if (has_copy && few != zero.secondary_ranks) {
    throw_config_error(where_of(origins, key), key,
                       fmt::format("{}, with zero_hpz_partition_size {}: the neighbours are the "
                                   "same: expected {}, or leave it out",
                                   few, zero.secondary_ranks, zero.secondary_ranks),
                       {{ConfigEdit::Kind::kRemove, key, ""}});
  }
  if (few > 1 && few >= data_parallel) {
    loaded.notices.push_back(
        fmt::format("no effect: {}: {} ranks are no fewer than the {} data-parallel ones, who "
                    "exchange gradients at once",
                    key, few, data_parallel));
    zero.gradient_ranks = 1;
    origins[key] = "derived: there are no other ranks";
    return;
  }
  check_divides(key, few, data_parallel, loaded.config.context_parallel.size, origins);
}

void resolve_offload(LoadedConfig& loaded, Origins& origins) {
  const Config& config = loaded.config;
  const bool on_cpu = config.training.device == DeviceChoice::kCpu;
  const OffloadTo states = config.offload.states;
  if (states == OffloadTo::kHost && on_cpu) tell_no_effect(loaded, kStates);
  const bool leaves = states == OffloadTo::kDisk || (states == OffloadTo::kHost && !on_cpu);
  const OptimizerKind optimizer = config.optimizer.kind;
  if (leaves && (needs_whole_tensors(optimizer) || sends_signs(optimizer))) {
    throw_config_error(
        where_of(origins, kStates + "device"), kStates + "device",
        fmt::format("{}, and its states stay on the device: write \"none\", or take "
                    "an optimizer that does not",
                    sends_signs(optimizer)              ? "a 1-bit optimizer exchanges them"
                    : optimizer == OptimizerKind::kLamb ? "Lamb looks at whole tensors at once"
                                                        : "Muon looks at whole tensors at once"),
        {{ConfigEdit::Kind::kSet, kStates + "device", "\"none\""}});
  }
  if (states == OffloadTo::kDisk) {
    join_paths(loaded.config, origins);
    check_states_on_disk(config, origins);
  }
  if (leaves && config.offload.states_ratio == 0.0) {
    loaded.notices.push_back(
        fmt::format("no effect: {}device: {}ratio is 0, so that all states stay on the device",
                    kStates, kStates));
  }
  check_parameters(loaded, origins, leaves);
}

}  // namespace dstrain
