// Chooses the micro-batch of a config that gives no batch size, as configs for Hugging Face's
// Trainer do: the Trainer's default, or as much of it as fits in memory.
#pragma once

#include "engine/config/config_json.h"
#include "engine/config/machine_facts.h"

namespace dstrain {

/// Where the config says neither train_batch_size nor train_micro_batch_size_per_gpu, and
/// kDefaultMicroBatch does not fit into facts.memory_bytes, chooses the largest power of two that
/// fits, at least 1. To be called between load_config() and resolve_config(), which takes the
/// default. The choice follows from the arguments alone, so that the launcher and every rank choose
/// alike. Throws ConfigError where resolve_config() would.
void choose_micro_batch(LoadedConfig& loaded, int world_size, const MachineFacts& facts);

}  // namespace dstrain
