// Library overhead: what a rank holds beside its arena: libraries, their scratch memory, threads,
// messages on their way. It is not known in advance to the byte, as the arena is, but by formulas
// whose constants were measured, each with its source, so that plan + overhead is what a run is
// seen to take. Mapped files do not count: they are the system's cache (step_metrics.h).
//
//   CPU   within 3 % or 64 MiB of runs of GPT-2 124M: scripts/check_memory holds it to that
//   CUDA  published figures of others; this project has not measured them
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/train/run_plan.h"

namespace dstrain {

/// One part of the overhead.
struct Overhead {
  std::string what;
  std::int64_t bytes = 0;
  std::string source;  ///< of the figure, for people
};

/// The overhead of the rank that `plan` is for, with `threads` compute threads, ranks being
/// processes that talk over TCP. Parts of zero bytes are left out.
std::vector<Overhead> cpu_library_overhead(const RunPlan& plan, int threads);

/// The overhead on one GPU of the Hopper generation.
std::vector<Overhead> cuda_library_overhead(const RunPlan& plan);

/// The overhead in the host's memory of a rank that computes on a GPU. It leaves out what CUDA
/// itself keeps there, which this project has not measured and nobody publishes.
std::vector<Overhead> cuda_host_overhead(const RunPlan& plan);

std::int64_t total_bytes(std::span<const Overhead> parts);

}  // namespace dstrain
