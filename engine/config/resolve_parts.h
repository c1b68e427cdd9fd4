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

/// Check the model's sizes, and those of a step once the batch is solved: none may overflow, or
/// take minutes to plan.
void check_model_size(const LoadedConfig& loaded, Origins& origins);
void check_step_size(const LoadedConfig& loaded, std::int64_t data_parallel, Origins& origins);

/// Returns the number of data-parallel ranks among `world_size`; nothing where a problem leaves it
/// open. Checks what each rank holds of the model.
std::optional<std::int64_t> divide_ranks(const LoadedConfig& loaded,
                                         int world_size,
                                         Origins& origins,
                                         ConfigProblems& problems);
/// Resolves training.device "auto" to what the ranks compute on.
void resolve_device(LoadedConfig& loaded, const MachineFacts& facts, Origins& origins);
/// Sets the batch where DeepSpeed's elasticity chooses it.
void resolve_elasticity(LoadedConfig& loaded, std::int64_t data_parallel, Origins& origins);
/// Checks the batch of the first steps, once the whole one is solved.
void resolve_rampup(const LoadedConfig& loaded, std::int64_t data_parallel, Origins& origins);
/// Checks what tensor and pipeline parallelism ask of the batch, solved by now, and of the other
/// blocks. `written` is the batch before it was solved.
void resolve_parallel(LoadedConfig& loaded,
                      const BatchConfig& written,
                      int world_size,
                      Origins& origins);
/// Decides what ranks that share sequences exchange, and checks what that asks of the sequences and
/// of the model's heads. It comes before the ranks are divided.
void resolve_context(LoadedConfig& loaded, const MachineFacts& facts, Origins& origins);
/// Checks sequences that grow, once the batch is solved and the ranks are divided.
void resolve_curriculum(LoadedConfig& loaded, Origins& origins);
/// Decides what "auto" precision means for this machine. It comes before all others, since it
/// decides which keys apply.
void resolve_open_precision(LoadedConfig& loaded, const MachineFacts& facts, Origins& origins);
void resolve_precision(LoadedConfig& loaded, Origins& origins);
/// Finds which token ends a document, as far as the data on this machine say so.
void resolve_documents(LoadedConfig& loaded, Origins& origins);
/// Checks what preferences are learnt from, once that is known of the data.
void resolve_preferences(LoadedConfig& loaded, Origins& origins);
/// Check adapters, and what is not trained.
void resolve_adapters(LoadedConfig& loaded, Origins& origins);
void resolve_freezing(const LoadedConfig& loaded, Origins& origins);
/// Checks training on rewards, once the batch is solved; "ppo" has a head of values.
void resolve_policy(LoadedConfig& loaded, Origins& origins);
/// Checks whether ranks can continue texts beside training.
void resolve_sampling(const LoadedConfig& loaded, Origins& origins);
/// Checks weights in few bits.
void resolve_quantization(const LoadedConfig& loaded, Origins& origins);
/// Checks the rates of tensors, once it is known which are trained.
void resolve_rates(const LoadedConfig& loaded, Origins& origins);
/// Checks fp8, once formats and batch are complete.
void resolve_fp8(const LoadedConfig& loaded, Origins& origins);
/// Throws if something is asked of a model with experts that it does not go with.
void resolve_experts(LoadedConfig& loaded,
                     std::optional<std::int64_t> same_parameters,
                     Origins& origins);
void resolve_optimizer(LoadedConfig& loaded, Origins& origins);
/// Checks which data-parallel ranks hold parameters a second time. Here and in the next three,
/// data-parallel ranks are all with the same parameters, those that share a sequence too.
void resolve_second_copy(LoadedConfig& loaded, std::int64_t data_parallel, Origins& origins);
/// Checks how many data-parallel ranks cut parameters among them.
void resolve_shard_groups(const LoadedConfig& loaded,
                          std::int64_t data_parallel,
                          const Origins& origins);
/// Finds which data-parallel ranks add up gradients that travel in 4 bits first, once the groups of
/// ranks are settled.
void resolve_quantized_gradients(LoadedConfig& loaded,
                                 std::int64_t data_parallel,
                                 const MachineFacts& facts,
                                 Origins& origins);
/// Checks what is kept outside the device's memory, once device and optimizer are settled.
void resolve_offload(LoadedConfig& loaded, Origins& origins);
void resolve_scheduler(LoadedConfig& loaded, Origins& origins);
/// Checks whether gradients can be compressed, once their formats are settled.
void resolve_compression(LoadedConfig& loaded, std::int64_t data_parallel, Origins& origins);

}  // namespace dstrain
