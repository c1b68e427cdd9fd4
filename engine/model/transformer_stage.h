// TransformerStage: consecutive blocks of the model, with the embedding before them and the loss
// head after them where they are its first and its last; between units it calls the hooks of the
// data-parallel strategy. A whole model is one stage; a pipeline has several, and with virtual
// stages a rank has several of them.
//
// A whole model also extends a cache (layer_shape.h): the stage is declared with a shape that says
// so, has no backward, and forward computes the next tokens of a sequence.
//
// A pass takes one micro-batch, or several together, unit by unit: each unit then computes them all
// before the next unit begins, and has their gradients added up when its backward ends.
//
// What crosses from one stage to the next is the residual stream [n, C], n the tokens that this
// rank's norms see; back comes its gradient.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/model/block.h"
#include "engine/model/embedding.h"
#include "engine/model/layer_context.h"
#include "engine/model/layer_shape.h"
#include "engine/model/loss_head.h"
#include "engine/model/target_weigher.h"
#include "engine/parallel/data_parallel.h"
#include "engine/parallel/visit_hooks.h"
#include "engine/plan/unit_walk.h"

namespace dstrain {

/// Blocks [first, end) of the model, in a place of `stages`.
struct StageExtent {
  std::int64_t first_block = 0;
  std::int64_t end_block = 0;
  int index = 0;
  int stages = 1;
  [[nodiscard]] bool is_first() const { return index == 0; }
  [[nodiscard]] bool is_last() const { return index + 1 == stages; }
};

/// One micro-batch of one step.
struct MicroBatch {
  std::int64_t index = 0;  ///< 0, 1, … within the step
  bool last = true;        ///< its gradients complete the step's
  int slot = 0;            ///< which set of saved activations it uses
  /// The number of tokens that go through the loss head, of which loss_rows() tells; 0: all do.
  std::int64_t loss_rows = 0;
  /// The factor of the gradient of a target's loss: 1 / targets of the global batch, so that it is
  /// that of their mean; or, with a weigher, 1 / what the batch is the mean of.
  float gradient_scale = 1;
  float token_scale = 1;  ///< 1 / tokens of the global batch, of losses that are a token's
  TargetWeigher* weigher = nullptr;  ///< nullptr: all targets weigh alike
};

class TransformerStage {
 public:
  /// `recompute` says what blocks compute again; shape.recompute is set from it, block by block,
  /// and the buffers of the stage that `shape` names are declared here.
  static TransformerStage declare(const LayerShape& shape,
                                  const RecomputeConfig& recompute,
                                  const StageExtent& extent,
                                  Blueprint& blueprint);

  /// The visits of a forward, a backward, an evaluation, in the order of the hooks below.
  [[nodiscard]] const UnitWalk& forward_walk() const { return forward_walk_; }
  [[nodiscard]] const UnitWalk& backward_walk() const { return backward_walk_; }
  /// The visits of a forward, and of the losses where it is the last stage.
  [[nodiscard]] UnitWalk evaluation_walk() const;

  /// Fills constants; before the first forward, and again where Attention::prepare would fill in
  /// others.
  void prepare(const LayerContext& context) const;
  [[nodiscard]] const StageExtent& extent() const { return extent_; }
  /// Of one of its blocks, by its index in the model.
  [[nodiscard]] const Attention& attention(std::int64_t block) const {
    return blocks_.at(static_cast<std::size_t>(block - extent_.first_block)).attention();
  }
  /// Of one of its blocks, likewise; nullptr where its feed-forward is dense.
  [[nodiscard]] const Experts* experts(std::int64_t block) const {
    return blocks_.at(static_cast<std::size_t>(block - extent_.first_block)).experts();
  }
  /// i32 [N]: where inputs (first stage) and targets (last stage) go before forward.
  [[nodiscard]] Tensor tokens(const LayerContext& context, int slot) const;
  [[nodiscard]] Tensor targets(const LayerContext& context, int slot) const;
  /// i32 [3, N], of the last stage where LayerShape::skips_targets, else empty: where what LossRows
  /// (engine/data) fills goes.
  [[nodiscard]] Tensor loss_rows(const LayerContext& context, int slot) const {
    return context.optional_buffer(loss_rows_, slot);
  }
  /// LayerShape::token_positions and query_positions, likewise, which every stage has; empty where
  /// layers know them, and the latter also where they are the former.
  [[nodiscard]] Tensor token_positions(const LayerContext& context, int slot) const;
  [[nodiscard]] Tensor query_positions(const LayerContext& context, int slot) const;
  /// LayerShape::first_sample, likewise; empty without dropout.
  [[nodiscard]] Tensor first_sample(const LayerContext& context, int slot) const {
    return context.optional_buffer(first_sample_, slot);
  }
  /// The tensors that cross between stages, [n, C] each: what forward reads (not in the first
  /// stage) and makes (not in the last), what backward reads (not in the last) and makes (not in
  /// the first).
  enum class Edge : std::uint8_t { kInput, kOutput, kGradientOfOutput, kGradientOfInput };
  [[nodiscard]] Tensor edge(const LayerContext& context, Edge edge) const;

  /// `slots`: of the micro-batches.
  void forward(const LayerContext& context, VisitHooks& hooks, std::span<const int> slots) const;
  /// After a forward that extended a cache: LossHead::next_logits.
  [[nodiscard]] ConstTensor next_logits(const LayerContext& context) const {
    return head_.next_logits(context);
  }
  /// `together`: micro-batches in order, at least one. The last stage adds their losses to loss_sum
  /// (the step's first overwrites it).
  void backward(const LayerContext& context,
                DataParallel& data_parallel,
                std::span<const MicroBatch> together) const;
  /// Called after forward, instead of backward: computes only the losses, of which those of the
  /// first `counted_samples`, at least one, count. Only for the last stage. `loss_rows`: as in
  /// MicroBatch.
  void evaluate(const LayerContext& context,
                DataParallel& data_parallel,
                int slot,
                std::int64_t loss_rows,
                std::int64_t counted_samples,
                Write loss_write) const;
  /// After evaluate.
  [[nodiscard]] TargetNumbers found(const LayerContext& context) const {
    return head_.found(context);
  }
  /// f64, one element; of the last stage.
  [[nodiscard]] Tensor loss_sum(const LayerContext& context) const {
    return head_.loss_sum(context);
  }

  /// LossHead::hit_sum, of the last evaluate; where the head does not score.
  [[nodiscard]] Tensor hit_sum(const LayerContext& context) const { return head_.hit_sum(context); }

 private:
  /// Units of one block, or of the head.
  struct Units {
    int own = -1;
    int frozen = -1;   // those of its parameters that are not trained, where others are; or -1
    int experts = -1;  // where they are a unit of their own; or -1
    [[nodiscard]] std::vector<int> all() const;
  };
  /// Begins the units of a block or of the head that has these tensors.
  static Units begin_units(const std::string& name,
                           const LayerShape& shape,
                           const std::vector<TensorDecl>& tensors,
                           Blueprint& blueprint);
  static void declare_handed_on(LayerShape& shape,
                                const RecomputeConfig& recompute,
                                Blueprint& blueprint);
  void declare_embedding(const LayerShape& shape, Blueprint& blueprint);
  void declare_head(const LayerShape& shape, Blueprint& blueprint);
  void declare_edges(const LayerShape& shape, Blueprint& blueprint);
  void declare_walks(const Blueprint& blueprint);
  [[nodiscard]] HeadTargets head_targets(const LayerContext& context,
                                         int slot,
                                         std::int64_t loss_rows) const;
  /// Where gradients of what is not trained go, as if a unit had nothing else.
  [[nodiscard]] GradTarget no_gradients(const LayerContext& context) const {
    return {.blueprint = &context.blueprint,
            .unit = {},
            .unwanted = context.optional_buffer(unwanted_)};
  }

  StageExtent extent_;
  Embedding embedding_;
  std::vector<int> embedding_units_;  // the table's first
  std::vector<Block> blocks_;
  std::vector<Units> block_units_;
  LossHead head_;
  Units head_units_;
  int table_unit_ = -1;  // of a tied table, here or copied from the first stage
  UnitWalk forward_walk_;
  UnitWalk backward_walk_;
  UnitVisit losses_visit_;  // of an evaluation, behind forward
  BufferRef tokens_;
  BufferRef targets_;
  BufferRef loss_rows_;
  BufferRef token_positions_;
  BufferRef query_positions_;
  BufferRef first_sample_;
  BufferRef unwanted_;    // scratch: GradTarget::unwanted
  BufferRef d_residual_;  // kept where micro-batches go together
  BufferRef input_;
  BufferRef output_;
  BufferRef d_output_;
  BufferRef d_input_;
};

}  // namespace dstrain
