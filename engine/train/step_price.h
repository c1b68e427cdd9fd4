// What a step would roughly take, from arithmetic, bytes on the wire and the schedule's idle time:
// to put ways of saving memory in the order of what they cost. Not a forecast: the constants are
// those of an accelerator's data sheet and of habit, and only ratios of two prices mean something.
#pragma once

#include "engine/config/config.h"
#include "engine/train/accelerators.h"

namespace dstrain {

struct RunPlan;

struct Cluster {
  Accelerator accelerator{};      ///< without flops: an A100's rates
  int ranks_per_host = 1;         ///< beyond them the network carries what is exchanged
  double network_bytes = 25.0e9;  ///< of one rank to other hosts, a second, each way: 200 Gbit/s
};

/// Seconds of a step of `config`, as the rank has it that `plan` is of: what it sends is the plan's
/// list of transfers.
double price_step(const Config& config, const RunPlan& plan, const Cluster& cluster);

}  // namespace dstrain
