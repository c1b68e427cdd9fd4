// Reads the run's one JSON file: DeepSpeed's keys and dstrain's own, strictly. Every error carries
// file:line:column and the JSON path; an unknown key names the nearest known one.
#pragma once

#include <cstdint>
#include <string>

#include "engine/config/config_problems.h"
#include "engine/config/loaded_config.h"
#include "engine/config/machine_facts.h"

namespace dstrain {

/// The value of train_micro_batch_size_per_gpu where neither it nor train_batch_size is written:
/// that of Hugging Face's Trainer.
inline constexpr std::int64_t kDefaultMicroBatch = 8;

/// Throws ConfigError with all problems that can be known without the number of ranks. Nothing that
/// the config names (data, model weights) is opened, except a model folder's config.json when
/// "model" is a path.
LoadedConfig load_config(const std::string& file, const LoadOptions& options);

/// Throws where the file is not JSON; other problems join `problems`, and values that they spoil
/// keep their defaults, so that resolve_config() can add its own before they are thrown together.
LoadedConfig load_config(const std::string& file,
                         const LoadOptions& options,
                         ConfigProblems& problems);

/// Divides `world_size` ranks among pipeline stages, tensor-parallel groups and data parallelism,
/// solves the batch identity and fills everything "auto"; afterwards no optional of Config is empty
/// but those of ZeroConfig and OffloadConfig, where that has a meaning, and Muon's rates where
/// there is no Muon. What depends on the machines follows from `facts` alone. Throws ConfigError
/// where values contradict each other.
void resolve_config(LoadedConfig& loaded, int world_size, const MachineFacts& facts = {});
/// Contradictions join `problems`; if there are any, only a part of the config is complete.
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
