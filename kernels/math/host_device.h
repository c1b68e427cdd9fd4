// The one function-qualifier macro: formulas written with it are compiled for the host and, in
// CUDA files, for the device as well. On the host they are always inlined, because the CPU
// kernels are compiled once per instruction set and an out-of-line copy could be shared between
// them by the linker.
#pragma once

#ifdef __CUDACC__
#define DSTRAIN_HD __host__ __device__ inline
#else
#define DSTRAIN_HD [[gnu::always_inline]] inline
#endif
