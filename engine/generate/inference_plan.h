// InferencePlan: everything that generation with one model will hold, known to the byte before any
// of it is allocated: the weights, a cache of keys and values for every position, and the scratch
// of one forward. Pure: no device, no file.
#pragma once

#include <string>
#include <vector>

#include "engine/generate/inference_block.h"
#include "engine/plan/blueprint.h"
#include "engine/plan/memory_plan.h"
#include "engine/plan/shard_map.h"

namespace dstrain {

struct InferencePlan {
  InferenceShape shape;
  Blueprint blueprint;
  ParamRef table;     ///< token embedding
  ParamRef position;  ///< index < 0 with RoPE
  std::vector<InferenceBlock> blocks;
  InferenceNorm final_norm;
  ParamRef head;  ///< the table, if it is tied
  BufferRef tokens;
  BufferRef residual;
  BufferRef logits;  ///< f32, of one position
  ShardMap shards;   ///< one slice: every unit whole
  MemoryPlan memory;
};

/// Positions that a forward computes at once if a prompt is longer: enough for the matrix products
/// to run at their rate, few enough that scratch stays small beside weights.
constexpr std::int64_t kPromptChunk = 256;

/// `shape.positions`: of prompt and generated text together.
InferencePlan plan_inference(const InferenceShape& shape);

/// "0.31 GiB: 0.23 GiB weights (124439808 × 2 bytes), …", for people.
std::string describe_memory(const InferencePlan& plan);

}  // namespace dstrain
