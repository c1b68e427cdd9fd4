// The interpreter of pipeline schedules: walks a rank's actions, calls its model chunks, and
// carries what crosses to the neighbours. The order is the schedule's (engine/plan/schedule.h),
// which has proved that it cannot deadlock; nothing is decided here.
#pragma once

#include <vector>

#include "engine/comm/communicator.h"
#include "engine/plan/schedule.h"
#include "kernels/core/device.h"

namespace dstrain {

/// The model's chunks on one rank, as a schedule sees them.
class PipelineChunks {
 public:
  PipelineChunks() = default;
  PipelineChunks(const PipelineChunks&) = delete;
  PipelineChunks& operator=(const PipelineChunks&) = delete;
  virtual ~PipelineChunks() = default;

  /// Of `together` micro-batches from `micro_batch` on, block by block.
  virtual void forward(int chunk, int micro_batch, int together) = 0;
  virtual void backward(int chunk, int micro_batch, int together) = 0;
  /// One buffer for each of activation and gradient, in and out: a schedule needs no more.
  virtual Tensor edge(Message::What what, Message::Direction direction) = 0;
};

/// Runs one rank's actions. `pipeline` has the ranks in pipeline order.
void run_schedule(const std::vector<Action>& actions,
                  PipelineChunks& chunks,
                  Communicator& pipeline,
                  Stream& compute);

}  // namespace dstrain
