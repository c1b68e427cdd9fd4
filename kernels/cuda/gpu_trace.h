// GpuTrace: adds what a GPU does to the trace of the rank that computes on it: kernels, copies and
// fills, a track for each of its streams, by CUPTI's activity records. Their times are on the
// host's steady clock, which CUPTI is given. CUPTI knows one listener in a process.
#pragma once

#include <memory>

#include "kernels/core/trace_log.h"

namespace dstrain {

/// For the log of the calling thread, which must outlive it.
std::unique_ptr<TraceSource> make_gpu_trace();

}  // namespace dstrain
