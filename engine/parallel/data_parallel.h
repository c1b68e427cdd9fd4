// DataParallel: where gradients and optimizer states live among the ranks that see different data.
// One implementation per file, zero0.cpp and on; a unit is a block, the embedding or the head.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/comm/communicator.h"
#include "engine/optim/optimizer.h"
#include "engine/plan/shard_map.h"
#include "engine/runtime/exec_context.h"
#include "engine/spec/config.h"

namespace dstrain {

struct StepParams {
  double learning_rate = 0.0;
  std::int64_t update = 1;         ///< optimizer updates, this one included
  double gradient_clipping = 0.0;  ///< limit of the global norm; 0: off
};

struct StepStats {
  double grad_norm = 0.0;  ///< global, before clipping
  bool updated = true;     ///< false: the norm is not finite and nothing was changed
};

class DataParallel {
 public:
  DataParallel() = default;
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;
  virtual ~DataParallel() = default;

  /// Where backward of this micro-batch (0, 1, … of the step) writes a unit's gradients.
  virtual GradTarget grad_target(int unit, std::int64_t micro_batch) = 0;
  /// Before and after a unit computes; parameters are whole in between.
  virtual void before_unit(int /*unit*/, Pass /*pass*/) {}
  virtual void after_unit(int /*unit*/, Pass /*pass*/) {}
  /// Backward of a micro-batch has left a unit for good; `last`: of this step's micro-batches.
  virtual void unit_grads_ready(int unit, bool last) = 0;
  /// Norm, clipping, update; afterwards every rank has the new parameters.
  virtual StepStats step(const StepParams& params) = 0;
};

/// What every strategy needs; all outlive it.
struct DataParallelParts {
  const ExecContext& context;
  const ShardMap& shards;
  Optimizer& optimizer;
  Communicator& group;    ///< the data-parallel group
  Stream& communication;  ///< stream for collectives beside the compute stream
  Tensor norm_total;      ///< f64, one element: scratch of the norm
};

/// ZeRO stage 0: plain data parallelism.
std::unique_ptr<DataParallel> make_zero0(const DataParallelParts& parts, const ZeroConfig& config);

}  // namespace dstrain
