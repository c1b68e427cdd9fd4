#include "kernels/cpu/isa.h"

#include <fstream>

#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/core/check.h"

namespace dstrain {

// Each is kernels/cpu/vector/table.cpp, compiled for that instruction set; dot has its attention
// alone, and is avx512 in everything else.
namespace baseline {
void fill_loops(VectorLoops* loops);
}
namespace avx2 {
void fill_loops(VectorLoops* loops);
}
namespace avx512 {
void fill_loops(VectorLoops* loops);
}
namespace amx {
void fill_loops(VectorLoops* loops);
}
namespace dot {
void fill_attention(VectorLoops* loops);
void fill_low_rank_in_pairs(VectorLoops* loops);
}  // namespace dot

namespace {

bool has_avx2() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
         __builtin_cpu_supports("bmi2") != 0 && __builtin_cpu_supports("f16c") != 0;
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512cd") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
}

/// CPUID leaf 7: AMX-BF16 is EDX bit 22, AMX-TILE bit 24.
bool has_amx_bits() {
  unsigned eax = 7;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  constexpr unsigned kBf16Tiles = (1U << 22) | (1U << 24);
  return (edx & kBf16Tiles) == kBf16Tiles;
}

/// Linux saves the 8 KiB of tile registers only for processes that ask (arch_prctl(2)); threads
/// started later inherit the permission.
bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool has_amx() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16") != 0 && has_amx_bits() &&
         may_use_tiles();
}

}  // namespace

std::string_view name_of(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kBaseline:
      return "x86-64";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kDot:
      return "avx512 + bf16";
    case CpuIsa::kAmx:
      return "avx512 + amx";
  }
  return "?";
}

std::vector<CpuIsa> supported_isas() {
  std::vector<CpuIsa> isas{CpuIsa::kBaseline};
  if (has_avx2()) {
    isas.push_back(CpuIsa::kAvx2);
  }
  if (has_avx512()) {
    isas.push_back(CpuIsa::kAvx512);
  }
  if (multiplies_bf16()) {
    isas.push_back(CpuIsa::kDot);
  }
  if (has_amx()) {
    isas.push_back(CpuIsa::kAmx);
  }
  return isas;
}

bool multiplies_bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16") != 0;  // every CPU with AMX, too
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "a CPU";
}

VectorLoops loops_for(CpuIsa isa) {
  VectorLoops loops{};
  switch (isa) {
    case CpuIsa::kBaseline:
      baseline::fill_loops(&loops);
      break;
    case CpuIsa::kAvx2:
      avx2::fill_loops(&loops);
      break;
    case CpuIsa::kAvx512:
      avx512::fill_loops(&loops);
      break;
    case CpuIsa::kDot:
      avx512::fill_loops(&loops);
      dot::fill_attention(&loops);
      dot::fill_low_rank_in_pairs(&loops);
      break;
    case CpuIsa::kAmx:
      amx::fill_loops(&loops);
      dot::fill_low_rank_in_pairs(&loops);
      break;
  }
  return loops;
}

}  // namespace dstrain
