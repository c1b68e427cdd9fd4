// RankDevice: what one rank computes with, and by which its tensors reach the other ranks.
#pragma once

#include <memory>

#include "engine/comm/rendezvous.h"
#include "engine/config/config.h"
#include "engine/train/run_plan.h"
#include "engine/train/train_options.h"
#include "kernels/backend.h"

namespace dstrain {

struct RankDevice {
  Backend backend;
  /// For tensors on the device; nullptr: they are in host memory. Uses the backend's device.
  std::unique_ptr<Rendezvous> rendezvous;
};

/// What a config says of computing on a GPU. Choices are told to the log.
CudaOptions cuda_options(const Config& config);

/// The CPU, or the GPU that the options name. Throws ConfigError where there is no GPU, with host
/// and rank, or too small a one for `plan`: before anything is allocated.
RankDevice make_rank_device(const Config& config,
                            const RunPlan& plan,
                            int threads,
                            Rendezvous& host,
                            const TrainOptions& options);

}  // namespace dstrain
