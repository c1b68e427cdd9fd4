// TraceRange: names a stretch of the host's work, and with it the GPU work that it enqueues, for
// profilers that understand NVTX (Nsight Systems and Compute). A few nanoseconds where none is
// attached, and nothing at all in builds without CUDA's headers (CMake chooses the file).
#pragma once

#include <cstdint>

namespace dstrain {

class TraceRange {
 public:
  /// `name` is copied by the profiler; `number` tells ranges of the same name apart.
  explicit TraceRange(const char* name, std::int64_t number = 0);
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;
  ~TraceRange();
};

}  // namespace dstrain
