// The micro-batch of a config that leaves its batch to somebody else, as those of Hugging Face's
// Trainer do: its default, or what the memory holds of it.
#pragma once

#include "engine/config/config_json.h"
#include "engine/config/machine_facts.h"

namespace dstrain {

/// Where the config says neither train_batch_size nor train_micro_batch_size_per_gpu, and
/// kDefaultMicroBatch is more than facts.memory_bytes hold: the largest power of two that fits, at
/// least 1. To be called between load_config() and resolve_config(), which takes the default.
/// Follows from the arguments alone, so that the launcher and every rank choose alike. Throws
/// ConfigError where resolve_config() would.
void choose_micro_batch(LoadedConfig& loaded, int world_size, const MachineFacts& facts);

}  // namespace dstrain
