#include "engine/train/micro_batch_choice.h"

#include <fmt/format.h>

#include "engine/base/amount_text.h"
#include "engine/train/memory_estimate.h"
#include "engine/train/memory_fit.h"

namespace dstrain {
namespace {

constexpr const char* kMicro = "train_micro_batch_size_per_gpu";

/// The memory with such a micro-batch, libraries included.
std::int64_t bytes_of(LoadedConfig loaded,
                      std::int64_t micro_batch,
                      int world_size,
                      const MachineFacts& facts) {
  loaded.config.batch.micro_batch_size = micro_batch;
  resolve_config(loaded, world_size, facts);
  const EstimatedDevice device{.cuda = facts.cuda};
  return most_bytes(loaded.config, world_size, [&](const RunPlan& plan) {
    return total_bytes(library_overhead(plan, device));
  });
}

}  // namespace

void choose_micro_batch(LoadedConfig& loaded, int world_size, const MachineFacts& facts) {
  const BatchConfig& batch = loaded.config.batch;
  const bool is_open = !batch.train_batch_size && !batch.micro_batch_size;
  if (!is_open || loaded.config.elasticity.enabled || !facts.memory_bytes) return;
  std::int64_t micro_batch = kDefaultMicroBatch;
  while (micro_batch > 1 &&
         bytes_of(loaded, micro_batch, world_size, facts) > *facts.memory_bytes) {
    micro_batch /= 2;
  }
  if (micro_batch == kDefaultMicroBatch) return;
  loaded.config.batch.micro_batch_size = micro_batch;
  const std::string why = fmt::format(
      "the largest power of two up to {}, the default of Hugging Face's Trainer, that "
      "{} per rank can hold",
      kDefaultMicroBatch, gib_text(*facts.memory_bytes));
  loaded.values.push_back(
      {.path = kMicro, .value = std::to_string(micro_batch), .origin = "derived: " + why});
  loaded.notices.push_back(fmt::format(
      "{}: {}, {}; the config says neither it nor train_batch_size", kMicro, micro_batch, why));
}

}  // namespace dstrain
