// GenerationPlan: everything that generation with one model will hold, known to the byte before any
// of it is allocated: the weights, a cache of keys and values for every position, and the scratch
// of one forward. The model is declared as for training, in the mode that extends a cache. Pure: no
// device, no file.
#pragma once

#include <string>

#include "engine/model/transformer_stage.h"
#include "engine/plan/blueprint.h"
#include "engine/plan/memory_plan.h"
#include "engine/plan/shard_map.h"

namespace dstrain {

struct GenerationSizes {
  DType compute = DType::kF32;
  std::int64_t positions = 1;     ///< of prompt and generated text together: rows of a text's cache
  std::int64_t texts = 1;         ///< that are read side by side, each with a cache
  std::int64_t chunk_tokens = 1;  ///< that one forward computes at most, of all texts together
};

struct GenerationPlan {
  ModelSpec model;
  GenerationSizes sizes;
  Blueprint blueprint;
  TransformerStage stage;  ///< the whole model
  ShardMap shards;         ///< one slice: every unit whole
  MemoryPlan memory;
};

/// The number of tokens that a forward computes at once if prompts are longer: enough for the
/// matrix products to run at full speed, few enough that scratch stays small beside the weights.
constexpr std::int64_t kPromptChunk = 256;

GenerationPlan plan_generation(const ModelSpec& model, const GenerationSizes& sizes);

/// "0.31 GiB: 0.23 GiB weights (124439808 × 2 bytes), …", for people.
std::string describe_memory(const GenerationPlan& plan);

}  // namespace dstrain
