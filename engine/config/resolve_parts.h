// The parts of resolve_config, by block. Each fills what is open in its block, notes where that
// came from, and throws ConfigError where values contradict each other.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "engine/config/config_json.h"
#include "engine/config/config_problems.h"

namespace dstrain {

/// path → where its value comes from; written ones have their position.
using Origins = std::map<std::string, std::string>;

/// "6 or 12": the multiples of `unit` around `value`, at least one unit.
std::string nearest_multiples(std::int64_t value, std::int64_t unit);

/// The model's sizes, and those of a step once the batch is solved: none that overflows, or takes
/// minutes to plan.
void check_model_size(const LoadedConfig& loaded, Origins& origins);
void check_step_size(const LoadedConfig& loaded, std::int64_t data_parallel, Origins& origins);

/// Data-parallel ranks, of `world_size` in all; empty where a problem leaves them open. Checks what
/// each rank holds of the model.
std::optional<std::int64_t> divide_ranks(const LoadedConfig& loaded,
                                         int world_size,
                                         Origins& origins,
                                         ConfigProblems& problems);
/// training.device "auto": what the machines are used for.
void resolve_device(LoadedConfig& loaded, const MachineFacts& facts, Origins& origins);
/// The batch, where DeepSpeed's elasticity chooses it.
void resolve_elasticity(LoadedConfig& loaded, std::int64_t data_parallel, Origins& origins);
/// The batch of the first steps, once the whole one is solved.
void resolve_rampup(const LoadedConfig& loaded, std::int64_t data_parallel, Origins& origins);
/// What tensor and pipeline parallelism ask of the batch, solved by now, and of the other blocks.
/// `written` is the batch before it was solved.
void resolve_parallel(LoadedConfig& loaded,
                      const BatchConfig& written,
                      int world_size,
                      Origins& origins);
/// Sequences that grow, once the batch is solved and the ranks are divided.
void resolve_curriculum(LoadedConfig& loaded, Origins& origins);
/// What "auto" means for this machine. Before all others: which keys there are depends on it.
void resolve_open_precision(LoadedConfig& loaded, const MachineFacts& facts, Origins& origins);
void resolve_precision(LoadedConfig& loaded, Origins& origins);
/// Which token ends a document, as far as the data say it on this machine.
void resolve_documents(LoadedConfig& loaded, Origins& origins);
/// Once formats and batch are complete.
void resolve_fp8(const LoadedConfig& loaded, Origins& origins);
void resolve_optimizer(LoadedConfig& loaded, Origins& origins);
void resolve_scheduler(LoadedConfig& loaded, Origins& origins);

}  // namespace dstrain
