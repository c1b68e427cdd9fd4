// TraceRange: names a stretch of the host's work, and with it the device's work that it enqueues:
// for the rank's own trace (trace_log.h), and for profilers that understand NVTX (Nsight Systems
// and Compute). A few nanoseconds where nobody looks. Builds without CUDA's headers have no NVTX
// (CMake chooses the file).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/core/trace_log.h"

namespace dstrain {

/// A range for profilers alone. `name` is copied by them.
class ProfilerRange {
 public:
  ProfilerRange(const char* name, std::int64_t number);
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
  ~ProfilerRange();
};

class TraceRange {
 public:
  /// `name` is a literal; `number` tells ranges of the same name apart.
  explicit TraceRange(const char* name, std::int64_t number = TraceEvent::kNone)
      : profiler_(name, number == TraceEvent::kNone ? 0 : number),
        span_(TraceKind::kAction, name, number) {}
  /// `name` is copied where it is needed.
  explicit TraceRange(const std::string& name)
      : profiler_(name.c_str(), 0), span_(TraceKind::kAction, kept(name)) {}

 private:
  static std::string_view kept(const std::string& name) {
    TraceLog* const log = TraceLog::recording();
    return log == nullptr ? std::string_view{} : log->keep(name);
  }

  ProfilerRange profiler_;
  TraceSpan span_;
};

}  // namespace dstrain
