// DataParallel: decides where parameters, gradients and optimizer states live among the ranks that
// see different data. One implementation per file, zero0.cpp to zero3.cpp; a unit is a block, the
// embedding or the head.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "engine/comm/communicator.h"
#include "engine/optim/optimizer.h"
#include "engine/parallel/offloaded_update.h"
#include "engine/parallel/visit_hooks.h"
#include "engine/plan/gather_plan.h"
#include "engine/plan/memory_plan.h"
#include "engine/plan/shard_map.h"
#include "engine/runtime/exec_context.h"

namespace dstrain {

struct StepParams {
  double learning_rate = 0.0;
  std::optional<double> beta1{};   ///< OneCycle's momentum
  std::optional<double> beta2{};   ///< and what DeepSpeed sets beside it
  std::int64_t update = 1;         ///< optimizer updates, this one included
  double gradient_clipping = 0.0;  ///< limit of the global norm; 0: off
  double loss_scale = 1.0;         ///< gradients are so many times too large
  double counted_share = 1.0;      ///< and so much too small: targets that count, out of all
  std::uint64_t seed = 0;          ///< of stochastic rounding
  GradientTravel travel = GradientTravel::kSummed;  ///< among the data-parallel ranks
  std::optional<std::int64_t> sequence{};  ///< tokens of each; none: as many as are planned
};

struct StepStats {
  /// Global, of the mean loss, before clipping. Where gradients are not summed, the quadratic mean
  /// over data-parallel ranks of the norms that they have, which is larger: noise does not cancel.
  double grad_norm = 0.0;
  bool updated = true;  ///< false: the norm is not finite and nothing was changed, on any rank
};

class DataParallel : public VisitHooks {
 public:
  /// A step begins whose gradients travel so.
  virtual void begin_step(GradientTravel /*travel*/) {}
  /// The visits of one of the plan's walks (`gathers`) begin; `last` says that no further walk with
  /// these parameters is known to follow.
  virtual void begin_walk(int /*walk*/, bool /*last*/) {}
  /// The tensor into which backward of this micro-batch (0, 1, … of the step) writes a unit's
  /// gradients.
  virtual GradTarget grad_target(int unit, std::int64_t micro_batch) = 0;
  /// Backward of a micro-batch has left a unit for good; `last` says that it is this step's last
  /// micro-batch.
  virtual void unit_grads_ready(int unit, std::int64_t micro_batch, bool last) = 0;
  /// Computes the norm, clips and updates. Collective: all ranks update, or none does.
  virtual StepStats step(const StepParams& params) = 0;
  /// Called after the masters were changed from outside: updates what the model computes with.
  virtual void refresh_parameters() = 0;
  /// The last update that has ended, where masters and moments lie elsewhere.
  [[nodiscard]] virtual std::optional<OffloadedUpdate> last_offloaded() const { return {}; }
};

/// The parts that every strategy needs; all outlive it.
struct DataParallelParts {
  const ExecContext& context;
  const ShardMap& shards;
  const MemoryPlan& memory;
  const std::vector<GatherPlan>& gathers;  ///< where parameters are cut: one a walk
  Optimizer& optimizer;
  UnitGroups groups;              ///< with whom each unit is shared
  Communicator* neighbour_group;  ///< those of kGradientAxes that work together; or nullptr
  Communicator* across_group;     ///< who has this rank's place among other neighbours; or nullptr
  Communicator* tensor_group;     ///< who holds copies of norms' and biases' parameters; or nullptr
  Communicator* shared_heads_group;  ///< who holds copies of key/value heads; or nullptr
  Communicator* tied_group;          ///< the other stage that holds the tied table; or nullptr
  Communicator* world;               ///< all ranks, for numbers in host memory; or nullptr
  Stream& communication;             ///< stream for collectives beside the compute stream
  Tensor norm_total;                 ///< f64, one element: scratch of the norm
  Tensor replica_gradients;          ///< scratch for all gradients that copies compute parts of
  /// The factor by which the ranks' summed gradients must be multiplied to be those of the mean
  /// loss.
  double mean_factor = 1.0;
  CompressionBuffers compression{};  ///< where gradients are compressed
  std::uint64_t seed = 0;            ///< of what compression begins with

  /// The ranks that have the same unit.
  [[nodiscard]] Communicator& group(int unit) const { return groups.replicas(unit); }
};

/// ZeRO stages (Rajbhandari et al. 2020): plain data parallelism; own 1/dp of the optimizer; and of
/// the gradients; and of the parameters.
std::unique_ptr<DataParallel> make_zero0(const DataParallelParts& parts);
std::unique_ptr<DataParallel> make_zero1(const DataParallelParts& parts);
std::unique_ptr<DataParallel> make_zero2(const DataParallelParts& parts);
std::unique_ptr<DataParallel> make_zero3(const DataParallelParts& parts);
/// Makes the strategy that cuts what the plan's placement cuts.
std::unique_ptr<DataParallel> make_data_parallel(const DataParallelParts& parts);

}  // namespace dstrain
