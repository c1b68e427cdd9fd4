#include "kernels/core/trace_range.h"

namespace dstrain {

ProfilerRange::ProfilerRange(const char* /*name*/, std::int64_t /*number*/) {}
ProfilerRange::~ProfilerRange() = default;

}  // namespace dstrain
