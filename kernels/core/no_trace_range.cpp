#include "kernels/core/trace_range.h"

namespace dstrain {

TraceRange::TraceRange(const char* /*name*/, std::int64_t /*number*/) {}
TraceRange::~TraceRange() = default;

}  // namespace dstrain
