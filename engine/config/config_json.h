// Reads the run's one JSON file: DeepSpeed's keys and dstrain's own, strictly. Every error carries
// file:line:column and the JSON path; an unknown key names the nearest known one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/config/config.h"
#include "engine/config/config_problems.h"
#include "engine/config/machine_facts.h"

namespace dstrain {

struct LoadOptions {
  std::vector<std::string> overrides;  ///< "optimizer.params.lr=1e-4", as given to --set
  bool allow_unknown_keys = false;     ///< unknown keys become notices
  bool ignore_offload = false;         ///< keys that offload become warnings
  /// The file may be a model's config.json, or a folder that holds one: with stand-ins for what a
  /// run needs besides, named in a notice (model_config_file.h). For estimates, not for runs.
  bool accept_model_config = false;
};

/// One value of the config and where it came from.
struct ConfigValue {
  std::string path;    ///< "optimizer.params.lr"
  std::string value;   ///< as JSON text
  std::string origin;  ///< "quickstart.json:12:5" | "default[ (why)]" | "derived: …" | "--set"
};

struct LoadedConfig {
  std::string file;  ///< as given
  Config config;
  std::vector<ConfigValue> values;   ///< every key that has a value, in the order of the contract
  std::vector<std::string> notices;  ///< lines to print at start: keys without effect, choices made
  std::vector<std::string> warnings;  ///< likewise: what the file asks for and nobody does
};

/// train_micro_batch_size_per_gpu where neither it nor train_batch_size is written: that of Hugging
/// Face's Trainer.
inline constexpr std::int64_t kDefaultMicroBatch = 8;

/// Throws ConfigError with all problems that can be known without the number of ranks. Nothing that
/// the config names (data, model weights) is opened, except a model folder's config.json when
/// "model" is a path.
LoadedConfig load_config(const std::string& file, const LoadOptions& options);

/// Throws where the file is no JSON; other problems join `problems`, and what they spoil keeps its
/// default, so that resolve_config() can add its own before they are thrown together.
LoadedConfig load_config(const std::string& file,
                         const LoadOptions& options,
                         ConfigProblems& problems);

/// Divides `world_size` ranks among pipeline stages, tensor-parallel groups and data parallelism,
/// solves the batch identity and fills everything "auto"; afterwards no optional of Config is empty
/// but those of ZeroConfig, where that has a meaning, and Muon's rates where there is no Muon.
/// What depends on the machines follows from `facts` alone.
/// Throws ConfigError where values contradict each other.
void resolve_config(LoadedConfig& loaded, int world_size, const MachineFacts& facts = {});
/// What contradicts itself joins `problems`; if there are any, only a part is complete.
void resolve_config(LoadedConfig& loaded,
                    int world_size,
                    const MachineFacts& facts,
                    ConfigProblems& problems);

/// Completes the "data" block alone, as resolve_config() does, for those who have no ranks.
void resolve_data(LoadedConfig& loaded);

/// The resolved config as JSON text that can be run again as it is.
std::string to_json(const LoadedConfig& loaded);
/// The same for people: one line a key, with its origin.
std::string describe_origins(const LoadedConfig& loaded);

}  // namespace dstrain
