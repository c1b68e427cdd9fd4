// The instruction sets that the CPU kernels are compiled for, and which this processor has.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/vector/loops.h"

namespace dstrain {

enum class CpuIsa : std::uint8_t {
  kBaseline,  ///< x86-64: SSE2
  kAvx2,      ///< x86-64-v3: AVX2, FMA and F16C
  kAvx512,    ///< x86-64-v4: AVX-512 F, BW, CD, DQ, VL
  kDot,       ///< the same with dot products of bf16 (Cooper Lake, Zen 4 on)
  kAmx,       ///< and with bf16 tiles (Sapphire Rapids on)
};

std::string_view name_of(CpuIsa isa);

/// The sets that this processor and kernel run, the fastest last. Asks the kernel for the tile
/// registers, once for the process.
std::vector<CpuIsa> supported_isas();

/// Whether this processor has units for products of bf16: AMX tiles, or AVX-512's bf16
/// instructions.
bool multiplies_bf16();

/// The processor's own name, "AMD EPYC 9R45"; "a CPU" where it gives none.
std::string processor_name();

/// The loops compiled for `isa`.
VectorLoops loops_for(CpuIsa isa);

}  // namespace dstrain
