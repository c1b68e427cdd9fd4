#include "engine/train/fit_choices.h"

#include <fmt/format.h>

#include "engine/config/zero_stage.h"
#include "engine/train/make_run_plan.h"
#include "engine/train/run_outline.h"
#include "engine/train/state_snapshot.h"

namespace dstrain {
namespace {

constexpr std::int64_t kTileTokens = 1024;  // whose products are about as fast as those of more

/// Whether feed-forwards in tiles take less memory than they do, and are not refused. Of short
/// sequences a micro-batch can have fewer.
bool can_tile(const Config& config) {
  const std::int64_t tokens = config.data.sequence_length / config.context_parallel.size;
  return !config.training.mlp_tile_tokens && tokens >= 2 * kTileTokens && !config.fp8.enabled &&
         !config.training.expert_capacity_factor &&
         (!config.adapters.enabled() || config.adapters.go_in_tiles());
}

Choice recompute_choice(const Config& config) {
  Choice choice;
  const std::string key = "activation_checkpointing.granularity=";
  const RecomputeConfig& now = config.recompute;
  if (now.granularity == RecomputeGranularity::kNone) {
    choice.push_back({{key + "selective"}, "recompute what is cheap (selective)"});
  }
  const std::string tiles = fmt::format("training.mlp_tile_tokens={}", kTileTokens);
  const std::string in_tiles = fmt::format("feed-forwards in tiles of {} tokens", kTileTokens);
  if (can_tile(config)) {
    choice.push_back({{tiles}, in_tiles});
  }
  if (now.granularity != RecomputeGranularity::kFull) {
    Change full{{key + "full"}, "recompute blocks in full"};
    if (can_tile(config)) {  // which computes nothing more than that does
      full.overrides.push_back(tiles);
      full.what += ", " + in_tiles;
    }
    choice.push_back(full);
  }
  if (config.training.device == DeviceChoice::kCuda && !now.inputs_on_host) {
    choice.push_back({{key + "full", "activation_checkpointing.cpu_checkpointing=true"},
                      "recompute blocks in full from inputs that the host's memory keeps"});
  }
  return choice;
}

/// Drops the copy of the state that an asynchronous save is written from.
Choice save_choice(const Config& config) {
  return saves_in_background(config)
             ? Choice{{{"checkpoint.async=false"}, "training waits for saves"}}
             : Choice{};
}

Choice zero_choice(const Config& config, const Mesh& mesh) {
  Choice choice;
  if (mesh.degree(kGradientAxes) == 1 || sends_signs(config.optimizer.kind)) return choice;
  for (const int stage : stages_beyond(config.zero.stage)) {
    const bool is_compressed = config.gradient_compression.kind != CompressionKind::kNone;
    if (is_compressed && cuts_of(stage).gradients) break;
    choice.push_back(
        {{fmt::format("zero_optimization.stage={}", stage)}, fmt::format("ZeRO stage {}", stage)});
  }
  return choice;
}

/// Where states and parameters lie outside the device's memory; on a CPU that is the host's.
struct Offloaded {
  OffloadTo states = OffloadTo::kNone;
  OffloadTo parameters = OffloadTo::kNone;

  bool operator==(const Offloaded&) const = default;
};

Offloaded offloaded_by(const Config& config) {
  const bool on_gpu = config.training.device == DeviceChoice::kCuda;
  const auto beyond = [&](OffloadTo to) {
    return to == OffloadTo::kHost && !on_gpu ? OffloadTo::kNone : to;
  };
  const bool cuts = cuts_of(config.zero.stage).parameters;
  return {.states = beyond(config.offload.states),
          .parameters = cuts ? beyond(config.offload.parameters) : OffloadTo::kNone};
}

bool names_folder(const OffloadConfig& offload) {
  return !offload.states_path.empty() || !offload.parameters_path.empty();
}

Change offload_change(const Config& config, const Offloaded& to) {
  const OffloadConfig& now = config.offload;
  const std::string states = "zero_optimization.offload_optimizer.";
  const std::string folder = disk_folder_for(now);
  const auto place = [&](OffloadTo where) {
    return where == OffloadTo::kDisk ? "the disk of " + folder : std::string("the host's memory");
  };
  const auto device = [](OffloadTo where) { return where == OffloadTo::kDisk ? "nvme" : "cpu"; };
  const bool on_disk = to.states == OffloadTo::kDisk;
  const bool together = to.parameters == to.states;
  Change change{{states + "device=" + device(to.states)},
                fmt::format("optimizer states{} {} {}", together ? " and parameters" : "",
                            on_disk ? "on" : "in", place(to.states))};
  if (now.states_ratio < 1.0) change.overrides.push_back(states + "ratio=1.0");
  if (on_disk && !names_folder(now)) change.overrides.push_back(states + "nvme_path=" + folder);
  if (to.parameters != OffloadTo::kNone) {
    if (!cuts_of(config.zero.stage).parameters) {
      change.overrides.emplace_back("zero_optimization.stage=3");
    }
    change.overrides.push_back(
        fmt::format("zero_optimization.offload_param.device={}", device(to.parameters)));
    if (!together) change.what += ", parameters in " + place(to.parameters);
  }
  if (on_disk && config.checkpoint.async) {
    change.overrides.emplace_back("checkpoint.async=false");
    change.what += ", training waits for saves";
  }
  return change;
}

/// Moves states, and parameters with them, farther away than they are: the host's memory is nearer
/// than a disk.
Choice offload_choice(const Config& config) {
  const OptimizerKind optimizer = config.optimizer.kind;
  if (needs_whole_tensors(optimizer) || sends_signs(optimizer)) return {};
  const Offloaded now = offloaded_by(config);
  const bool in_part = now.states != OffloadTo::kNone && config.offload.states_ratio < 1.0;
  const bool on_gpu = config.training.device == DeviceChoice::kCuda;
  constexpr OffloadTo kNone = OffloadTo::kNone;
  constexpr OffloadTo kHost = OffloadTo::kHost;
  constexpr OffloadTo kDisk = OffloadTo::kDisk;
  Choice choice;
  for (const Offloaded& to :
       {Offloaded{kHost, kNone}, Offloaded{kHost, kHost}, Offloaded{kDisk, kNone},
        Offloaded{kDisk, kHost}, Offloaded{kDisk, kDisk}}) {
    const bool needs_gpu = to.states == kHost || to.parameters == kHost;
    const bool comes_back = to.states < now.states || to.parameters < now.parameters;
    if ((needs_gpu && !on_gpu) || comes_back || (to == now && !in_part)) continue;
    choice.push_back(offload_change(config, to));
  }
  return choice;
}

Choice micro_batch_choice(const Config& config) {
  Choice choice;
  for (std::int64_t micro = *config.batch.micro_batch_size / 2; micro >= 1; micro /= 2) {
    choice.push_back({{fmt::format("train_micro_batch_size_per_gpu={}", micro)},
                      fmt::format("micro-batches of {}", micro)});
  }
  return choice;
}

/// Degrees that stay within a host, and beyond it for pipelines: twice, four times, eight times.
Choice tensor_choice(const Config& config, const Mesh& mesh, int ranks_per_host) {
  Choice choice;
  const int now = config.tensor_parallel.size;
  if (now > 1 && !config.tensor_parallel.sequence_parallel) {
    choice.push_back({{"tensor_parallel.sequence_parallel=true"}, "sequence parallel"});
  }
  for (int size = 2 * now; size <= std::min(8 * now, ranks_per_host); size *= 2) {
    if (mesh.world_size() % (size * config.pipeline.stages) == 0) {
      choice.push_back(
          {{fmt::format("tensor_parallel.size={}", size), "tensor_parallel.sequence_parallel=true"},
           fmt::format("tensor parallel over {} ranks", size)});
    }
  }
  return choice;
}

Choice pipeline_choice(const Config& config, const Mesh& mesh) {
  Choice choice;
  const int now = config.pipeline.stages;
  const bool cut_by_hand = !config.pipeline.partition.empty();
  for (int stages = 2 * now; stages <= 8 * now && !cut_by_hand; stages *= 2) {
    if (mesh.world_size() % (stages * config.tensor_parallel.size) == 0 &&
        stages * config.pipeline.virtual_stages <= config.model.num_layers) {
      choice.push_back(
          {{fmt::format("pipeline.stages={}", stages)}, fmt::format("{} pipeline stages", stages)});
    }
  }
  return choice;
}

}  // namespace

std::vector<Choice> choices_of(const Config& config, const Mesh& mesh, int ranks_per_host) {
  return {save_choice(config),          recompute_choice(config),
          zero_choice(config, mesh),    offload_choice(config),
          micro_batch_choice(config),   tensor_choice(config, mesh, ranks_per_host),
          pipeline_choice(config, mesh)};
}

std::string disk_folder_for(const OffloadConfig& offload) {
  if (!names_folder(offload)) return "/var/tmp";
  return offload.states_path.empty() ? offload.parameters_path : offload.states_path;
}

}  // namespace dstrain
