// DeepSpeed's keys about the step as a whole: the batch, the clipping, what is printed.
#include "engine/config/key_builders.h"

namespace dstrain {
namespace {

constexpr KeyBlock kBatch{"", &Config::batch};

}  // namespace

std::vector<Key> batch_keys() {
  constexpr double kMostSequences = 1e9;  // keeps products of batch sizes far from overflow
  Key clipping = field("gradient_clipping", at_least(0), &Config::gradient_clipping);
  clipping.note =
      "The largest global L2 norm that gradients keep, 0 for any. It is taken before an optimizer "
      "sees them, before Muon's momentum too, where DeepSpeed limits the orthogonal updates";
  clipping.aliases = {"optimizer.params.max_grad_norm"};  // where Apex's optimizers have it
  return {
      kBatch.field("train_batch_size", between(1, kMostSequences), &BatchConfig::train_batch_size),
      kBatch.field("train_micro_batch_size_per_gpu", between(1, kMostSequences),
                   &BatchConfig::micro_batch_size),
      kBatch.field("gradient_accumulation_steps", between(1, kMostSequences),
                   &BatchConfig::gradient_accumulation_steps),
      default_from(auto_is(clipping, "1"),
                   "default (DeepSpeed 0.19; releases before mid-2026 did not clip)"),
  };
}

std::vector<Key> reporting_keys() {
  return {
      field("steps_per_print", {.low = 1, .high = kMostEver}, &Config::steps_per_print),
      field("wall_clock_breakdown", {}, &Config::wall_clock_breakdown),
  };
}

}  // namespace dstrain
