// "activation_checkpointing": what backward computes again instead of keeping it. granularity and
// layers are dstrain's. DeepSpeed's own keys there do not turn it on: they configure a function
// that a model's Python code may call. partition_activations and cpu_checkpointing do here what
// they do there; the others have no effect, each for a reason of its own.
#include "engine/config/key_builders.h"

namespace dstrain {
namespace {

constexpr KeyBlock kRecompute{"activation_checkpointing.", &Config::recompute};

const std::string kBlock = "activation_checkpointing.";

Key without_effect(const char* name, std::string note) {
  return no_effect(kBlock + name, KeyKind::kAny, std::move(note));
}

}  // namespace

std::vector<Key> recompute_keys() {
  constexpr double kMostBlocks = 1e9;
  const auto recomputes = [](const Config& c) {
    return c.recompute.granularity != RecomputeGranularity::kNone;
  };
  const Key layers = kRecompute.field("layers", between(1, kMostBlocks), &RecomputeConfig::layers);
  const char* const kPython = "it configures DeepSpeed's Python function for recomputing";
  return {
      kRecompute.choice("granularity",
                        {{"none", RecomputeGranularity::kNone},
                         {"selective", RecomputeGranularity::kSelective},
                         {"full", RecomputeGranularity::kFull}},
                        &RecomputeConfig::granularity),
      only_for(layers, "granularity \"selective\" and \"full\"", recomputes),
      only_for(no_effect(layers.path, layers.kind, "granularity is \"none\": no block recomputes"),
               "granularity \"none\"", [=](const Config& c) { return !recomputes(c); }),
      auto_is_default(null_is_default(
          kRecompute.field("partition_activations", {}, &RecomputeConfig::partitions_inputs))),
      auto_is_default(null_is_default(
          kRecompute.field("cpu_checkpointing", {}, &RecomputeConfig::inputs_on_host))),
      without_effect("contiguous_memory_optimization",
                     "what blocks keep always lies in one region, planned before the start"),
      without_effect("number_checkpoints", "granularity and layers say what is computed again"),
      without_effect("synchronize_checkpoint_boundary", kPython),
      without_effect("profile", kPython),
  };
}

}  // namespace dstrain
