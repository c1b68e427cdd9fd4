// The CPU backend for a given instruction set, for tests and benchmarks that go through all of
// them. Everyone else calls make_cpu_backend(threads) of kernels/backend.h.
#pragma once

#include "kernels/backend.h"
#include "kernels/cpu/isa.h"

namespace dstrain {

/// `isa` must be one of supported_isas(). Matrix products choose for themselves.
Backend make_cpu_backend(int threads, CpuIsa isa);

}  // namespace dstrain
