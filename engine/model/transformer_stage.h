// TransformerStage: embedding, blocks and loss head as one pipeline stage, with the hooks of the
// data-parallel strategy between units. Unit 0 is the embedding, unit 1 + i block i, the last the
// head.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/block.h"
#include "engine/model/embedding.h"
#include "engine/model/layer_shape.h"
#include "engine/model/loss_head.h"
#include "engine/parallel/data_parallel.h"
#include "engine/plan/unit_walk.h"
#include "engine/runtime/exec_context.h"

namespace dstrain {

/// One micro-batch of one step.
struct MicroBatch {
  std::int64_t index = 0;    ///< 0, 1, … within the step
  bool last = true;          ///< its gradients complete the step's
  int slot = 0;              ///< which set of saved activations it uses
  float gradient_scale = 1;  ///< 1 / tokens of the global batch, so that gradients are of the mean
};

class TransformerStage {
 public:
  /// `recompute`: what blocks compute again; shape.recompute is set from it, block by block.
  static TransformerStage declare(const LayerShape& shape,
                                  const RecomputeConfig& recompute,
                                  Blueprint& blueprint);

  /// The visits of one forward and backward, and of one evaluation, in the order of the hooks
  /// below.
  [[nodiscard]] UnitWalk training_walk() const;
  [[nodiscard]] UnitWalk evaluation_walk() const;

  /// Fills constants; once, before the first forward.
  void prepare(const ExecContext& context) const;
  /// i32 [N]: where a micro-batch's inputs and targets go before forward.
  [[nodiscard]] Tensor tokens(const ExecContext& context, int slot) const;
  [[nodiscard]] Tensor targets(const ExecContext& context, int slot) const;

  void forward(const ExecContext& context, DataParallel& data_parallel, int slot) const;
  /// Adds the micro-batch's losses to loss_sum (the step's first overwrites it).
  void backward(const ExecContext& context,
                DataParallel& data_parallel,
                const MicroBatch& micro_batch) const;
  /// After forward, instead of backward: only the losses.
  void evaluate(const ExecContext& context,
                DataParallel& data_parallel,
                int slot,
                Write loss_write) const;
  /// f64, one element.
  [[nodiscard]] Tensor loss_sum(const ExecContext& context) const {
    return head_.loss_sum(context);
  }

 private:
  [[nodiscard]] UnitWalk forward_walk() const;
  /// The head, and the embedding where its table is the head's matrix.
  [[nodiscard]] std::vector<int> units_of_logits() const;
  [[nodiscard]] int head_unit() const { return static_cast<int>(blocks_.size()) + 1; }

  Embedding embedding_;
  std::vector<Block> blocks_;
  LossHead head_;
  BufferRef tokens_;
  BufferRef targets_;
  BufferRef d_residual_;
};

}  // namespace dstrain
