// Tensor cores for the host's compiler: stands before kernels/cuda/device/tensor_core.cuh in the
// include path. Each lane hands over its registers and computes its own outputs from everyone's.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "kernels/cuda/device/language.cuh"

namespace dstrain {

template <typename T>
float half_of(std::uint32_t pair, int which) {
  const auto bits = static_cast<std::uint16_t>(which == 0 ? pair : pair >> 16);
  return to_float(T{bits});
}

template <typename T>
void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  std::uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  const auto& of_warp = emulated::exchange(mine, sizeof(mine));
  const auto registers_of = [&](int lane, std::uint32_t(&registers)[6]) {
    std::memcpy(registers, of_warp[static_cast<std::size_t>(lane)].data(), sizeof(registers));
  };
  const int g = emulated::lane() / 4;
  const int t = emulated::lane() % 4;
  for (int quad = 0; quad < 4; ++quad) {  // terms 2·quad, 2·quad + 1, and those 8 further on
    std::uint32_t rows[6];
    registers_of(g * 4 + quad, rows);
    for (int column = 0; column < 2; ++column) {
      std::uint32_t columns[6];
      registers_of((2 * t + column) * 4 + quad, columns);
      for (int half = 0; half < 2; ++half) {
        for (int upper = 0; upper < 2; ++upper) {
          const float term = half_of<T>(columns[4 + upper], half);
          c[column] += half_of<T>(rows[2 * upper], half) * term;
          c[2 + column] += half_of<T>(rows[2 * upper + 1], half) * term;
        }
      }
    }
  }
}

inline void load_transposed(std::uint32_t (&b)[2], const void* row) {
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) {
    __builtin_trap();
  }
  const auto& of_warp = emulated::exchange(&row, sizeof(row));
  const int g = emulated::lane() / 4;
  const int t = emulated::lane() % 4;
  for (int matrix = 0; matrix < 2; ++matrix) {
    b[matrix] = 0;
    for (int half = 0; half < 2; ++half) {
      const std::uint16_t* from = nullptr;
      std::memcpy(&from, of_warp[static_cast<std::size_t>(matrix * 8 + 2 * t + half)].data(),
                  sizeof(from));
      b[matrix] |= static_cast<std::uint32_t>(from[g]) << (16 * half);
    }
  }
}

}  // namespace dstrain
