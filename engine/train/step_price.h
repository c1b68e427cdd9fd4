// Estimates roughly how long a step would take, from arithmetic, bytes on the wire and the
// schedule's idle time, to order ways of saving memory by their cost. It is not a forecast: the
// constants are those of an accelerator's data sheet and of experience, and only ratios of two
// prices are meaningful.
#pragma once

#include "engine/config/config.h"
#include "engine/train/accelerators.h"

namespace dstrain {

struct RunPlan;

struct Cluster {
  Accelerator accelerator{};      ///< without flops: an A100's rates
  int ranks_per_host = 1;         ///< beyond them the network carries what is exchanged
  double network_bytes = 25.0e9;  ///< of one rank to other hosts, a second, each way: 200 Gbit/s
  double host_bytes = 25.0e9;  ///< of one rank to its host's memory, a second: PCIe 4.0, 16 lanes
  double disk_bytes = 2.0e9;   ///< of one rank to its host's disk, a second, reads and writes
  /// Of a micro-batch, at which products run half as fast as they can.
  double half_efficient_tokens = 256.0;
};

/// The seconds of a step of `config` on the rank that `plan` is for, which sends what the plan's
/// list of transfers says.
double price_step(const Config& config, const RunPlan& plan, const Cluster& cluster);

}  // namespace dstrain
