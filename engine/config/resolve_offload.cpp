// Checks what is kept outside the device's memory, once it is known what the ranks compute on.
#include <fmt/format.h>

#include "engine/config/json_text.h"
#include "engine/config/resolve_parts.h"

namespace dstrain {
namespace {

const std::string kStates = "zero_optimization.offload_optimizer.";
const std::string kParameters = "zero_optimization.offload_param.";

/// Where a value was written, for an error, as far as it was.
std::string where_of(const Origins& origins, const std::string& path) {
  const auto found = origins.find(path);
  return found == origins.end() ? "" : found->second;
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

}  // namespace

void resolve_offload(LoadedConfig& loaded, Origins& origins) {
  const Config& config = loaded.config;
  const bool on_cpu = config.training.device == DeviceChoice::kCpu;
  const auto has_no_effect = [&](const std::string& key) {
    loaded.notices.push_back(
        fmt::format("no effect: {}device: \"cpu\" is where CPUs compute: there is no other memory "
                    "to offload to but a disk (\"nvme\")",
                    key));
  };
  const OffloadTo states = config.offload.states;
  if (states == OffloadTo::kHost && on_cpu) has_no_effect(kStates);
  const bool leaves = states == OffloadTo::kDisk || (states == OffloadTo::kHost && !on_cpu);
  const OptimizerKind optimizer = config.optimizer.kind;
  if (leaves && (optimizer == OptimizerKind::kLamb || optimizer == OptimizerKind::kMuon)) {
    throw_config_error(where_of(origins, kStates + "device"), kStates + "device",
                       fmt::format("{} looks at whole tensors at once, and its states stay on the "
                                   "device: write \"none\", or take an optimizer that does not",
                                   optimizer == OptimizerKind::kLamb ? "Lamb" : "Muon"),
                       {{ConfigEdit::Kind::kSet, kStates + "device", "\"none\""}});
  }
  if (states == OffloadTo::kDisk) check_states_on_disk(config, origins);
  if (config.offload.parameters == OffloadTo::kHost && on_cpu) {
    has_no_effect(kParameters);
  } else if (config.offload.parameters != OffloadTo::kNone) {
    throw_config_error(where_of(origins, kParameters + "device"), kParameters + "device",
                       "parameters are not offloaded in this version yet: --ignore-offload trains "
                       "without it",
                       {{ConfigEdit::Kind::kSet, kParameters + "device", "\"none\""}});
  }
}

}  // namespace dstrain
