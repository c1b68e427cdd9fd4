#include "tests/bench/machine_peak.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <memory>
#include <thread>
#include <vector>

#include <immintrin.h>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel_for.h"

namespace dstrain::bench {
namespace {

// So many independent sums hide the latency of an instruction: 4 cycles, two of them a cycle, and
// registers are left for the operands.
constexpr int kSums = 12;
constexpr std::int64_t kRounds = 2'000'000;

/// Each runs kRounds rounds and returns the operations of a round.
using Rounds = double (*)();

// The compiler may neither drop the sums nor see that a round changes nothing.
#define DSTRAIN_KEEP(sum) __asm__ volatile("" : "+x"(sum))
#define DSTRAIN_KEEP_512(sum) __asm__ volatile("" : "+v"(sum))

double add_and_multiply_sse() {
  __m128 sums[kSums];
  for (__m128& sum : sums)
    sum = _mm_setzero_ps();
  const __m128 a = _mm_set1_ps(0.5F);
  for (std::int64_t round = 0; round < kRounds; ++round) {
#pragma GCC unroll 16
    for (__m128& sum : sums) {
      sum = _mm_add_ps(_mm_mul_ps(sum, a), a);
      DSTRAIN_KEEP(sum);
    }
  }
  return kSums * 2.0 * 4.0;
}

[[gnu::target("avx2,fma")]] double fma_256() {
  __m256 sums[kSums];
  for (__m256& sum : sums)
    sum = _mm256_setzero_ps();
  const __m256 a = _mm256_set1_ps(0.5F);
  for (std::int64_t round = 0; round < kRounds; ++round) {
#pragma GCC unroll 16
    for (__m256& sum : sums) {
      sum = _mm256_fmadd_ps(sum, a, a);
      DSTRAIN_KEEP(sum);
    }
  }
  return kSums * 2.0 * 8.0;
}

[[gnu::target("avx512f")]] double fma_512() {
  __m512 sums[kSums];
  for (__m512& sum : sums)
    sum = _mm512_setzero_ps();
  const __m512 a = _mm512_set1_ps(0.5F);
  for (std::int64_t round = 0; round < kRounds; ++round) {
#pragma GCC unroll 16
    for (__m512& sum : sums) {
      sum = _mm512_fmadd_ps(sum, a, a);
      DSTRAIN_KEEP_512(sum);
    }
  }
  return kSums * 2.0 * 16.0;
}

[[gnu::target("avx512f,avx512bf16")]] double dot_bf16() {
  __m512 sums[kSums];
  for (__m512& sum : sums)
    sum = _mm512_setzero_ps();
  const auto a = (__m512bh)_mm512_setzero_si512();
  for (std::int64_t round = 0; round < kRounds; ++round) {
#pragma GCC unroll 16
    for (__m512& sum : sums) {
      sum = _mm512_dpbf16_ps(sum, a, a);
      DSTRAIN_KEEP_512(sum);
    }
  }
  return kSums * 2.0 * 32.0;
}

// Four sums of 16 x 16, each of 32 products deep: more do not fit beside the operands.
[[gnu::target("amx-tile,amx-bf16")]] double dot_tiles() {
  struct alignas(64) {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  __asm__ volatile("ldtilecfg %0" ::"m"(config));
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (std::int64_t round = 0; round < kRounds / 8; ++round) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 4.0 * 2.0 * 16.0 * 16.0 * 32.0 / 8.0;
}

struct Instruction {
  const char* name;
  Rounds rounds;
};

Instruction instruction_for(DType dtype) {
  const CpuIsa isa = supported_isas().back();
  if (dtype == DType::kBF16 && isa == CpuIsa::kAmx) return {"tdpbf16ps", dot_tiles};
  if (dtype == DType::kBF16 && multiplies_bf16()) return {"vdpbf16ps", dot_bf16};
  switch (isa) {
    case CpuIsa::kAmx:
    case CpuIsa::kDot:
    case CpuIsa::kAvx512:
      return {"vfmadd of 512 bits", fma_512};
    case CpuIsa::kAvx2:
      return {"vfmadd of 256 bits", fma_256};
    case CpuIsa::kBaseline:
      break;
  }
  return {"mulps and addps", add_and_multiply_sse};
}

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

InstructionPeak instruction_peak(DType dtype, int threads) {
  constexpr int kTries = 5;
  const Instruction instruction = instruction_for(dtype);
  std::vector<double> best(static_cast<std::size_t>(threads), 0.0);
  std::vector<std::thread> team;
  for (double& of_thread : best) {
    team.emplace_back([&of_thread, &instruction] {
      for (int i = 0; i < kTries; ++i) {
        const double begin = processor_seconds();
        const double operations = instruction.rounds() * static_cast<double>(kRounds);
        of_thread = std::max(of_thread, operations / (processor_seconds() - begin));
      }
    });
  }
  InstructionPeak peak{.instruction = instruction.name};
  for (std::size_t i = 0; i < best.size(); ++i) {
    team[i].join();
    peak.flops += best[i];
  }
  return peak;
}

double memory_rate(int threads) {
  constexpr std::int64_t kElements = std::int64_t{48} << 20;
  constexpr std::int64_t kPiece = std::int64_t{1} << 20;
  constexpr int kTries = 6;
  const auto array = [&] {
    auto made = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(kElements));
    parallel_pieces(threads, kElements, kPiece, [&](std::int64_t begin, std::int64_t end) {
      std::fill(made.get() + begin, made.get() + end, 1.0F);
    });
    return made;
  };
  const auto a = array();
  const auto b = array();
  const auto c = array();
  double best = 0.0;
  for (int i = 0; i < kTries; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    parallel_pieces(threads, kElements, kPiece, [&](std::int64_t first, std::int64_t end) {
      float* const to = a.get();
      const float* const left = b.get();
      const float* const right = c.get();
      for (std::int64_t at = first; at < end; ++at) {
        to[at] = left[at] + 3.0F * right[at];
      }
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best = std::max(best, 3.0 * 4.0 * static_cast<double>(kElements) / seconds.count());
  }
  return best;
}

}  // namespace dstrain::bench
