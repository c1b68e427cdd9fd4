// What this machine gives at most, whatever a program does: the FLOP/s of the instructions that
// products are made of, on registers alone, and the rate of its memory.
#pragma once

#include <string>

#include "kernels/core/dtype.h"

namespace dstrain::bench {

struct InstructionPeak {
  std::string instruction;  ///< "vdpbf16ps", "vfmadd (512 bits)"
  double flops = 0.0;       ///< a second, of all threads together
};

/// Measures the fastest instruction for products of `dtype` that this processor has; where it has
/// none for bf16, that for f32. Each thread counts the time that it had a processor.
InstructionPeak instruction_peak(DType dtype, int threads);

/// Bytes a second read and written by a = b + s · c over arrays far larger than caches (STREAM's
/// triad, McCalpin 1995; what a cache reads before it writes is not counted).
double memory_rate(int threads);

}  // namespace dstrain::bench
