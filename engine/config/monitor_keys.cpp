// DeepSpeed's keys about who is told how a run goes.
#include <initializer_list>

#include "engine/config/key_builders.h"

namespace dstrain {
namespace {

constexpr KeyBlock kMonitors{"", &Config::monitors};
constexpr KeyBlock kTensorboard{"tensorboard.", kMonitors.to(&MonitorConfig::tensorboard)};
constexpr KeyBlock kCsv{"csv_monitor.", kMonitors.to(&MonitorConfig::csv)};
constexpr KeyBlock kWandb{"wandb.", kMonitors.to(&MonitorConfig::wandb)};

/// Adds settings of a block that are all without effect, since what they ask for is elsewhere.
void add_without_effect(std::vector<Key>& keys,
                        const std::string& block,
                        std::initializer_list<const char*> names,
                        const std::string& why) {
  for (const char* name : names) {
    keys.push_back(no_effect(block + "." + name, KeyKind::kAny, why));
  }
}

Key noted(Key key, std::string note) {
  key.note = std::move(note);
  return null_is_default(std::move(key));
}

void add_folder(std::vector<Key>& keys, const auto& block, const std::string& inside) {
  keys.push_back(block.field("enabled", {}, &MonitorFolder::enabled));
  keys.push_back(noted(block.field("output_path", {}, &MonitorFolder::output_path),
                       "the folder that has a folder <job_name> with the files; \"\": they are in "
                       "<output_dir>/" +
                           inside));
  keys.push_back(noted(block.field("job_name", {}, &MonitorFolder::job_name),
                       "\"\": the name of the folder training.output_dir"));
}

}  // namespace

std::vector<Key> monitor_keys() {
  std::vector<Key> keys;
  add_folder(keys, kTensorboard, "tensorboard");
  add_folder(keys, kCsv, "csv");
  keys.push_back(kWandb.field("enabled", {}, &WandbConfig::enabled));
  keys.push_back(noted(kWandb.field("project", {}, &WandbConfig::project),
                       "the project of the offline run in <output_dir>/wandb"));
  keys.push_back(noted(kWandb.field("group", {}, &WandbConfig::group), "\"\": none"));
  keys.push_back(noted(kWandb.field("team", {}, &WandbConfig::team),
                       "\"\": that of the account which sends the run"));
  keys.push_back(block_not_done(
      "comet",
      "nothing is written for Comet, whose offline archives only its own library writes; "
      "tensorboard, csv_monitor and wandb are written"));
  const std::string of_trace = "`dstrain trace RUN --tables` prints it of any steps of a run";
  add_without_effect(keys, "flops_profiler",
                     {"enabled", "recompute_fwd_factor", "profile_step", "module_depth",
                      "top_modules", "detailed", "output_file"},
                     of_trace);
  add_without_effect(keys, "comms_logger", {"enabled", "verbose", "prof_all", "debug", "prof_ops"},
                     of_trace);
  add_without_effect(keys, "timers.throughput", {"enabled", "synchronized"},
                     "metrics.jsonl has the timings of every step");
  keys.push_back(no_effect("memory_breakdown", KeyKind::kBool,
                           "metrics.jsonl and ranks.jsonl have memory_bytes"));
  keys.push_back(no_effect("dump_state", KeyKind::kBool, "--print-config prints every value"));
  keys.push_back(no_effect("log_level", KeyKind::kAny, "it sets DeepSpeed's Python logger"));
  return keys;
}

}  // namespace dstrain
