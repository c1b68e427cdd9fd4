// "elasticity": the batch as DeepSpeed's formulas give it for these ranks.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/config/elasticity.h"
#include "engine/config/json_text.h"
#include "engine/config/resolve_parts.h"

namespace dstrain {
namespace {

constexpr const char* kEnabled = "elasticity.enabled";
constexpr const char* kLargest = "elasticity.max_train_batch_size";
constexpr const char* kMicroBatches = "elasticity.micro_batch_sizes";
constexpr const char* kModelRanks = "elasticity.model_parallel_size";
constexpr const char* kIgnore = "elasticity.ignore_non_elastic_batch_info";
constexpr const char* kBatchKeys[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                      "gradient_accumulation_steps"};

/// Lists up to twenty of them.
std::string list_of(const std::vector<std::int64_t>& numbers) {
  constexpr std::size_t kMost = 20;
  if (numbers.size() <= kMost) return fmt::format("{}", fmt::join(numbers, ", "));
  return fmt::format("{}, … {}", fmt::join(numbers.begin(), numbers.begin() + kMost, ", "),
                     numbers.back());
}

void check_block(const LoadedConfig& loaded, Origins& origins) {
  const ElasticityConfig& elasticity = loaded.config.elasticity;
  for (const char* required : {kLargest, kMicroBatches}) {
    if (origins[required].empty() || origins[required].starts_with("default")) {
      throw_config_error(
          origins[kEnabled], required,
          "is missing, and elasticity is enabled: write the largest acceptable batch, "
          "and the micro-batches, such as 2000 and [2, 4, 6]");
    }
  }
  const bool has_batch = loaded.config.batch.train_batch_size ||
                         loaded.config.batch.micro_batch_size ||
                         loaded.config.batch.gradient_accumulation_steps;
  if (has_batch && !elasticity.ignore_non_elastic_batch_info) {
    throw_config_error(origins[kEnabled], kEnabled,
                       fmt::format("elasticity chooses {}: leave them out, or set {} to true",
                                   fmt::join(kBatchKeys, ", "), kIgnore));
  }
  if (elasticity.min_gpus > elasticity.max_gpus) {
    throw_config_error(origins["elasticity.min_gpus"], "elasticity.min_gpus",
                       fmt::format("{} is more than elasticity.max_gpus {}", elasticity.min_gpus,
                                   elasticity.max_gpus));
  }
  const std::int64_t model_ranks =
      std::int64_t{loaded.config.tensor_parallel.size} * loaded.config.pipeline.stages;
  if (elasticity.model_parallel_size > 1 && elasticity.version == ElasticityVersion::k01) {
    throw_config_error(
        origins[kModelRanks], kModelRanks,
        fmt::format("{} needs elasticity.version 0.2", elasticity.model_parallel_size));
  }
  if (elasticity.model_parallel_size > 1 && elasticity.model_parallel_size != model_ranks) {
    throw_config_error(
        origins[kModelRanks], kModelRanks,
        fmt::format("{} contradicts tensor_parallel.size {} × pipeline.stages {}",
                    elasticity.model_parallel_size, loaded.config.tensor_parallel.size,
                    loaded.config.pipeline.stages));
  }
}

}  // namespace

void resolve_elasticity(LoadedConfig& loaded, std::int64_t data_parallel, Origins& origins) {
  ElasticityConfig& elasticity = loaded.config.elasticity;
  if (!elasticity.enabled) return;
  check_block(loaded, origins);
  const auto found = elastic_batch(elasticity, data_parallel);
  if (!found) {
    throw_config_error(
        origins[kMicroBatches], kMicroBatches,
        fmt::format("[{}]: each must be at most {} {}{}, and elasticity.num_gpus_per_node {} a "
                    "multiple of {} {}",
                    fmt::join(elasticity.micro_batch_sizes, ", "), kLargest,
                    elasticity.max_train_batch_size,
                    elasticity.version == ElasticityVersion::k02 ? " of a node" : "",
                    elasticity.num_gpus_per_node, kModelRanks, elasticity.model_parallel_size));
  }
  const std::int64_t batch = found->train_batch_size;
  if (!found->micro_batch_size) {
    throw_config_error(
        origins[kEnabled], kEnabled,
        fmt::format("{} data-parallel ranks are not among those that can share a batch of {}: {}",
                    data_parallel, batch, list_of(found->valid_ranks)));
  }
  const std::int64_t micro = *found->micro_batch_size;
  if (batch == 0 || batch % (micro * data_parallel) != 0) {
    throw_config_error(
        origins[kLargest], kLargest,
        fmt::format("{} is too small for {} data-parallel ranks, or does not divide among them, "
                    "with micro-batches of {}",
                    elasticity.max_train_batch_size, data_parallel,
                    fmt::join(elasticity.micro_batch_sizes, ", ")));
  }
  loaded.config.batch = {.train_batch_size = batch,
                         .micro_batch_size = micro,
                         .gradient_accumulation_steps = batch / (micro * data_parallel)};
  for (const char* const key : kBatchKeys)
    origins[key] = fmt::format("derived: elasticity, for {} data-parallel ranks", data_parallel);
  loaded.notices.push_back(
      fmt::format("elasticity: a batch of {}, which {} data-parallel ranks "
                  "can share",
                  batch, list_of(found->valid_ranks)));
  // This lets the resolved config, which has the batch, be run again.
  if (!elasticity.ignore_non_elastic_batch_info) {
    elasticity.ignore_non_elastic_batch_info = true;
    origins[kIgnore] = "derived: the batch above is elasticity's";
  }
}

}  // namespace dstrain
