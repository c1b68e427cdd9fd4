// RankDevice: the device that one rank computes with, and the rendezvous by which its tensors reach
// the other ranks.
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
  /// The rendezvous for tensors on the device; nullptr: they are in host memory. It uses the
  /// backend's device.
  std::unique_ptr<Rendezvous> rendezvous;
};

/// The config's settings for computing on a GPU. Choices are logged.
CudaOptions cuda_options(const Config& config);

/// Makes the CPU's device, or that of the GPU that the options name. Throws ConfigError where there
/// is no GPU, with host and rank, or too small a one for `plan`: before anything is allocated.
RankDevice make_rank_device(const Config& config,
                            const RunPlan& plan,
                            int threads,
                            Rendezvous& host,
                            const TrainOptions& options);

}  // namespace dstrain
