// "zero_optimization". dstrain's grain is the unit: a block, the embedding or the head. A unit's
// gradient is one flat, padded buffer, reduced as soon as backward leaves the unit; its parameters
// are gathered by one operation. Keys that tune another grain have no effect; keys that promise
// traffic in another form, where there is none, are refused.
#include <initializer_list>
#include <string_view>

#include "engine/config/key_builders.h"
#include "engine/config/zero_stage.h"

namespace dstrain {
namespace {

constexpr KeyBlock kZeroBlock{"zero_optimization.", &Config::zero};

const std::string kZero = "zero_optimization.";

bool is_stage3(const Config& c) {
  return cuts_of(c.zero.stage).parameters;
}

constexpr double kDiskBlock = 4096;

Key refused_unless(const std::string& name, std::vector<std::string> off, std::string reason) {
  return refused(kZero + name, std::move(off), std::move(reason));
}

void add_without_effect(std::vector<Key>& keys,
                        const std::string& note,
                        std::initializer_list<const char*> names) {
  constexpr std::string_view kPrefix = "stage3_";  // which DeepSpeed lets one leave out
  for (const std::string_view name : names) {
    keys.push_back(no_effect(fmt::format("{}{}", kZero, name), KeyKind::kAny, note));
    if (name.starts_with(kPrefix)) {
      keys.back().aliases = {fmt::format("{}{}", kZero, name.substr(kPrefix.size()))};
    }
  }
}

template <typename Member>
void add_stage3_size(std::vector<Key>& keys, const std::string& name, Member ZeroConfig::*member) {
  Key key = kZeroBlock.field("stage3_" + name, between(0, kMostEver), member);
  key.aliases = {kZero + name};
  Key elsewhere = no_effect(key.path, key.kind, "it tunes ZeRO's stage 3, and the stage is lower");
  elsewhere.aliases = key.aliases;
  keys.push_back(only_for(key, "stage 3", is_stage3));
  keys.push_back(
      only_for(elsewhere, "stages 0 to 2", [](const Config& c) { return !is_stage3(c); }));
}

/// DeepSpeed's old way to say stage 1, or 0.
Key short_form() {
  Key key = silent("zero_optimization", KeyKind::kBool);
  key.note = "write {\"stage\": 1}, or 0, 2 or 3";
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    draft.config.zero.stage = node.boolean ? 1 : 0;
    draft.derived[kZero + "stage"] = "zero_optimization is true or false, DeepSpeed's old form";
  };
  return key;
}

void add_honoured(std::vector<Key>& keys) {
  keys.push_back(short_form());
  keys.push_back(kZeroBlock.field("stage", between(0, 3), &ZeroConfig::stage));
  keys.push_back(kZeroBlock.field("overlap_comm", {}, &ZeroConfig::overlap_comm));
  add_stage3_size(keys, "prefetch_bucket_size", &ZeroConfig::prefetch_bucket_size);
  add_stage3_size(keys, "param_persistence_threshold", &ZeroConfig::param_persistence_threshold);
  add_stage3_size(keys, "model_persistence_threshold", &ZeroConfig::model_persistence_threshold);
  add_stage3_size(keys, "max_live_parameters", &ZeroConfig::max_live_parameters);
  add_stage3_size(keys, "max_reuse_distance", &ZeroConfig::max_reuse_distance);
}

void add_other_grains(std::vector<Key>& keys) {
  add_without_effect(
      keys,
      "the unit (a block, the embedding, the head) is the bucket: reduced as soon "
      "as backward leaves it, gathered at once, its memory planned",
      {"reduce_bucket_size", "allgather_bucket_size", "use_multi_rank_bucket_allreduce",
       "stage3_module_granularity_threshold", "leaf_module", "overlap_reduce_scatter"});
  add_without_effect(keys, "a unit's gradient is always one flat, padded buffer",
                     {"contiguous_gradients"});
  add_without_effect(keys,
                     "the stage decides: all-reduce in stage 0, reduce-scatter from stage 1 on",
                     {"reduce_scatter"});
  add_without_effect(keys, "a unit's parameters are always gathered by one all-gather",
                     {"allgather_partitions", "stage3_use_all_reduce_for_fetch_params",
                      "stage3_allgather_sequential"});
  add_without_effect(keys, "every rank owns an equal slice of every unit: there is no round",
                     {"round_robin_gradients"});
  add_without_effect(keys, "every parameter has a gradient in every step",
                     {"ignore_unused_parameters", "find_unused_parameters"});
  add_without_effect(
      keys, "a checkpoint resumes on any number of ranks, from its master weights",
      {"elastic_checkpoint", "load_from_fp32_weights", "pipeline_loading_checkpoint"});
  add_without_effect(keys, "a checkpoint holds every parameter once, whatever the stage",
                     {"stage3_gather_16bit_weights_on_model_save"});
  keys.back().aliases.push_back(kZero + "stage3_gather_fp16_weights_on_model_save");
  add_without_effect(keys, "it concerns how DeepSpeed hooks into torch's modules",
                     {"memory_efficient_linear", "override_module_apply",
                      "log_trace_cache_warnings", "enable_sanity_checks"});
  add_without_effect(keys, "Muon's momentum always stays on the device",
                     {"save_muon_momentum_buffer_in_memory"});
}

void add_groups_of_ranks(std::vector<Key>& keys) {
  constexpr double kMostRanks = 1 << 20;
  const auto add = [&](const std::string& name, double least, int ZeroConfig::*member, Key below) {
    keys.push_back(only_for(null_is_default(auto_is_default(field(
                                kZero + name, between(least, kMostRanks), kZeroBlock.to(member)))),
                            "stage 3", is_stage3));
    keys.push_back(
        only_for(std::move(below), "stages 0 to 2", [](const Config& c) { return !is_stage3(c); }));
  };
  const std::string second = "zero_hpz_partition_size";
  Key without = no_effect(kZero + second, KeyKind::kInteger,
                          "parameters are gathered in ZeRO's stage 3, and the stage is lower");
  without.accepted = {"1"};
  add(second, 1, &ZeroConfig::secondary_ranks, std::move(without));
  const std::string few = "mics_shard_size";
  add(few, -1, &ZeroConfig::shard_ranks,
      auto_is_default(refused_unless(
          few, {"-1", "0"},
          "groups of ranks (MiCS) cut what ZeRO's stage 3 cuts, and the stage is lower")));
  Key hierarchy = no_effect(kZero + "mics_hierarchical_params_gather", KeyKind::kBool,
                            "it chooses a way through the hosts for the same bytes, and the "
                            "library that carries them chooses its own");
  hierarchy.accepted = {"false"};
  keys.push_back(std::move(hierarchy));
}

void add_quantized_traffic(std::vector<Key>& keys) {
  const auto add = [&](const std::string& name, bool ZeroConfig::*member, std::string below) {
    keys.push_back(only_for(null_is_default(auto_is_default(kZeroBlock.field(name, {}, member))),
                            "stage 3", is_stage3));
    keys.push_back(only_for(auto_is_default(refused_unless(name, {"false"}, std::move(below))),
                            "stages 0 to 2", [](const Config& c) { return !is_stage3(c); }));
  };
  add("zero_quantized_weights", &ZeroConfig::quantized_weights,
      "parameters are gathered in ZeRO's stage 3, and the stage is lower");
  add("zero_quantized_gradients", &ZeroConfig::quantized_gradients,
      "gradients travel in 4 bits in ZeRO's stage 3, as DeepSpeed's do, and the stage is lower");
  constexpr double kMostRanks = 1 << 20;
  const auto codes_gradients = [](const Config& c) {
    return is_stage3(c) && c.zero.quantized_gradients;
  };
  Key first = kZeroBlock.field("zero_qgz_partition_size", between(1, kMostRanks),
                               &ZeroConfig::gradient_ranks);
  first.note = "neighbouring ranks that add up gradients in 4 bits before others do; 1: none";
  Key off = silent(first.path);
  keys.push_back(only_for(null_is_default(auto_is_default(std::move(first))), "gradients in 4 bits",
                          codes_gradients));
  keys.push_back(only_for(std::move(off), "gradients in whole numbers",
                          [=](const Config& c) { return !codes_gradients(c); }));
  keys.push_back(auto_is_default(refused_unless(
      "zero_quantized_nontrainable_weights", {"false"},
      "it keeps parameters that are not trained in 8 bits, and all are trained: write false")));
}

void add_other_distributions(std::vector<Key>& keys) {
  add_quantized_traffic(keys);
  keys.push_back(refused_unless("zeropp_loco_param", {},
                                "it adds to gradients what earlier steps lost on the way, which is "
                                "not in this version yet: leave it out"));
  add_groups_of_ranks(keys);
  keys.push_back(refused_unless("legacy_stage1", {"false"}, "DeepSpeed has removed it as well"));
}

/// DeepSpeed's old way to say "cpu".
Key old_offload(const std::string& name, OffloadTo OffloadConfig::*member) {
  Key key = silent(kZero + name, KeyKind::kBool);
  key.set = [member, path = key.path](ConfigDraft& draft, const JsonNode& node) {
    OffloadTo& to = draft.config.offload.*member;
    if (node.boolean && to == OffloadTo::kDisk) {
      throw_config_error(node.where, path,
                         "true means \"cpu\", and the block that has taken its place says \"nvme\"",
                         {{ConfigEdit::Kind::kRemove, path, ""}});
    }
    if (node.boolean) to = OffloadTo::kHost;
  };
  key.accepted = {"false"};
  key.offloads = true;
  return key;
}

bool offloads_states(const Config& c) {
  return c.offload.states != OffloadTo::kNone;
}
bool keeps_states(const Config& c) {
  return !offloads_states(c);
}

bool offloads_parameters_to_disk(const Config& c) {
  return c.offload.parameters == OffloadTo::kDisk;
}
bool keeps_parameters_off_disk(const Config& c) {
  return !offloads_parameters_to_disk(c);
}

/// Where nothing is offloaded, `key` and its like in files from elsewhere are only settings of a
/// feature that is off.
void add_for_offloading(std::vector<Key>& keys, Key key) {
  Key off = silent(key.path);
  keys.push_back(only_for(std::move(key), "offloaded states", offloads_states));
  keys.push_back(only_for(std::move(off), "states on the device", keeps_states));
}

void add_devices(std::vector<Key>& keys) {
  const Names<OffloadTo> places = {
      {"none", OffloadTo::kNone}, {"cpu", OffloadTo::kHost}, {"nvme", OffloadTo::kDisk}};
  for (const auto& [name, member] : {std::pair{"offload_optimizer", &OffloadConfig::states},
                                     std::pair{"offload_param", &OffloadConfig::parameters}}) {
    const auto access = KeyBlock{"", &Config::offload}.to(member);
    Key key = auto_is_default(
        null_is_default(choice(fmt::format("{}{}.device", kZero, name), places, access)));
    key.offloads = true;
    key.accepted = {"\"none\""};
    keys.push_back(std::move(key));
  }
  keys.push_back(old_offload("cpu_offload", &OffloadConfig::states));
  keys.push_back(old_offload("cpu_offload_param", &OffloadConfig::parameters));
  keys.back().aliases = {kZero + "cpu_offload_params"};
}

void add_offloading(std::vector<Key>& keys) {
  constexpr KeyBlock kStates{"zero_optimization.offload_optimizer.", &Config::offload};
  constexpr KeyBlock kAio{"aio.", &Config::offload};
  constexpr double kMostBuffers = 1024;
  constexpr double kMostDepth = 4096;
  constexpr double kMostBlock = 1 << 30;
  const auto add = [&](Key key) {
    add_for_offloading(keys, auto_is_default(null_is_default(std::move(key))));
  };
  const auto add_others = [&](const std::string& block, const char* note,
                              std::initializer_list<const char*> names) {
    for (const char* name : names) {
      add_for_offloading(keys, no_effect(block + name, KeyKind::kAny, note));
    }
  };
  add_devices(keys);
  add(kStates.field("nvme_path", {}, &OffloadConfig::states_path));
  Key buffers =
      kStates.field("buffer_count", between(1, kMostBuffers), &OffloadConfig::state_buffers);
  buffers.note = "windows of masters and moments in memory at once";
  add(std::move(buffers));
  Key ratio = kStates.field("ratio", between(0, 1), &OffloadConfig::states_ratio);
  ratio.note = "the share of a rank's states that leave the device: those of its first units";
  add(std::move(ratio));
  add_others(kStates.prefix, "reads are always ahead, and writes behind",
             {"pipeline", "pipeline_read", "pipeline_write"});
  add_others(kStates.prefix, "it is always so", {"pin_memory", "fp32_optimizer_states"});
  add_others(kStates.prefix, "windows have the size that is planned",
             {"buffer_size", "max_in_cpu", "fast_init"});
  add_others(kStates.prefix, "the update runs beside the next forward, on all cores of a rank",
             {"super_offload", "cpuadam_cores_perc"});
  constexpr KeyBlock kParameters{"zero_optimization.offload_param.", &Config::offload};
  const auto add_for_parameters = [&](Key key) {
    Key off = silent(key.path);
    keys.push_back(only_for(auto_is_default(null_is_default(std::move(key))),
                            "parameters on a disk", offloads_parameters_to_disk));
    keys.push_back(only_for(std::move(off), "parameters elsewhere", keeps_parameters_off_disk));
  };
  add_for_parameters(kParameters.field("nvme_path", {}, &OffloadConfig::parameters_path));
  Key reads = kParameters.field("buffer_count", between(1, kMostBuffers),
                                &OffloadConfig::parameter_buffers);
  reads.note = "slices of units that are read from the disk at once";
  add_for_parameters(std::move(reads));
  for (const char* name : {"buffer_size", "max_in_cpu", "pin_memory", "fast_init", "ratio"}) {
    keys.push_back(silent(kZero + "offload_param." + name));
  }
  add_without_effect(keys, "memory that is offloaded to is always pinned",
                     {"cpu_offload_use_pin_memory"});
  const std::string sub_group = kZero + "sub_group_size";
  Key size = field(sub_group, between(0, kMostEver),
                   KeyBlock{"", &Config::offload}.to(&OffloadConfig::sub_group_size));
  size.note = "elements of a window of offloaded states, at most; 0: as many as are planned";
  keys.push_back(only_for(auto_is_default(null_is_default(std::move(size))), "offloaded states",
                          offloads_states));
  keys.push_back(only_for(
      no_effect(sub_group, KeyKind::kAny, "the optimizer updates a rank's slice unit by unit"),
      "states on the device", keeps_states));
  keys.push_back(refused_unless("zenflow", {},
                                "it delays a part of the gradients, which changes results: "
                                "--ignore-offload trains without it"));
  keys.back().offloads = true;
  add(kAio.field("block_size", between(kDiskBlock, kMostBlock), &OffloadConfig::block_size));
  add(kAio.field("queue_depth", between(1, kMostDepth), &OffloadConfig::queue_depth));
  add_others(
      "aio.", "a rank asks the disk by io_uring, with many blocks at once",
      {"intra_op_parallelism", "single_submit", "overlap_events", "use_gds", "thread_count"});
}

}  // namespace

std::vector<Key> zero_keys() {
  std::vector<Key> keys;
  add_honoured(keys);
  add_other_grains(keys);
  add_other_distributions(keys);
  add_offloading(keys);
  return keys;
}

}  // namespace dstrain
