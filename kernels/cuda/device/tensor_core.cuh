// Tensor cores through mma.sync: 16 × 8 outputs a warp at a time, over 16 terms; Ampere and later.
// Each lane holds (PTX ISA, "Matrix Fragments for mma.m16n8k16"), g = lane / 4, t = lane % 4:
//   A, 16 × 16: {A[g][2t..], A[g+8][2t..], A[g][2t+8..], A[g+8][2t+8..]}, pairs of neighbours
//   B, 16 × 8:  {B[2t..][g], B[2t+8..][g]}, pairs of neighbours in the column
//   C, 16 × 8:  {C[g][2t], C[g][2t+1], C[g+8][2t], C[g+8][2t+1]}, f32
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/core/bf16.h"
#include "kernels/cuda/device/language.cuh"

namespace dstrain {

/// c += a · b, whose two registers are b0 and b1; T: BF16 or F16.
template <typename T>
__device__ void multiply_add(float (&c)[4],
                             const std::uint32_t (&a)[4],
                             std::uint32_t b0,
                             std::uint32_t b1) {
  if constexpr (std::is_same_v<T, BF16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// Four 8 × 8 matrices of 16-bit elements from shared memory. Lane l gives the address of row l % 8
/// of matrix l / 8, a multiple of 16 bytes, and gets the pair M[g][2t], M[g][2t+1] of each matrix.
__device__ inline void load_matrices(std::uint32_t (&pairs)[4], const void* row) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(address)
               : "memory");
}

/// The same, but gets the pair M[2t][g], M[2t+1][g] of each matrix.
__device__ inline void load_matrices_transposed(std::uint32_t (&pairs)[4], const void* row) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(address)
               : "memory");
}

}  // namespace dstrain
