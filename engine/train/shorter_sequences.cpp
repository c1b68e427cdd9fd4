#include "engine/train/shorter_sequences.h"

#include "kernels/core/check.h"

namespace dstrain {

ShorterSequences::ShorterSequences(const RunPlan& plan, std::int64_t of_sequence)
    : sequence(of_sequence) {
  check(0 < sequence && sequence <= plan.batch.sequence, "sequences of {}, where {} are planned",
        sequence, plan.batch.sequence);
  LayerShape shape = plan.shape;
  shape.buffers_sequence = shape.sequence;
  shape.sequence = sequence;
  for (const ChunkPlan& chunk : plan.chunks) {
    stages.push_back(
        TransformerStage::declare(shape, plan.recompute, chunk.stage.extent(), blueprint));
  }
}

}  // namespace dstrain
