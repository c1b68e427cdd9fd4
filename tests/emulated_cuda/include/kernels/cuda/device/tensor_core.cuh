// Tensor cores for the host's compiler: stands before kernels/cuda/device/tensor_core.cuh in the
// include path. Each lane hands over its registers and computes its own outputs from everyone's.
#pragma once

#include <array>
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
void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  std::uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const auto& of_warp = emulated::exchange(mine);
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

/// The rows of four matrices, from the addresses that all lanes give.
class MatrixRows {
 public:
  explicit MatrixRows(const void* mine) {
    if (reinterpret_cast<std::uintptr_t>(mine) % 16 != 0) {
      __builtin_trap();
    }
    of_warp_ = &emulated::exchange(mine);
  }
  [[nodiscard]] std::uint32_t at(int matrix, int row, int column) const {
    const std::uint16_t* elements = nullptr;
    std::memcpy(&elements, (*of_warp_)[static_cast<std::size_t>(matrix * 8 + row)].data(),
                sizeof(elements));
    return elements[column];
  }

 private:
  const std::array<emulated::Handed, 32>* of_warp_ = nullptr;
};

inline void load_matrices(std::uint32_t (&pairs)[4], const void* row) {
  const MatrixRows rows(row);
  const int g = emulated::lane() / 4;
  const int t = emulated::lane() % 4;
  for (int matrix = 0; matrix < 4; ++matrix) {
    pairs[matrix] = rows.at(matrix, g, 2 * t) | rows.at(matrix, g, 2 * t + 1) << 16;
  }
}

inline void load_matrices_transposed(std::uint32_t (&pairs)[4], const void* row) {
  const MatrixRows rows(row);
  const int g = emulated::lane() / 4;
  const int t = emulated::lane() % 4;
  for (int matrix = 0; matrix < 4; ++matrix) {
    pairs[matrix] = rows.at(matrix, 2 * t, g) | rows.at(matrix, 2 * t + 1, g) << 16;
  }
}

}  // namespace dstrain
