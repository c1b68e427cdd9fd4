#include "engine/checkpoint/foreign/huggingface/mxfp4.h"

#include <cmath>
#include <vector>

#include "engine/checkpoint/placed_tensor.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr float kNumbers[] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                              -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};
constexpr int kScaleBias = 127;
constexpr std::uint8_t kScaleOfNan = 255;

float scale_of(std::byte bits) {
  const auto exponent = std::to_integer<std::uint8_t>(bits);
  return exponent == kScaleOfNan ? NAN : std::ldexp(1.0F, exponent - kScaleBias);
}

}  // namespace

void read_mxfp4(const Mxfp4Matrix& matrix, const Piece& piece, Tensor out) {
  check(out.numel() == piece.flat.size(), "\"{}\": {} elements cannot take a piece of {}",
        piece.tensor, out.numel(), piece.flat.size());
  auto* to = static_cast<std::byte*>(out.data());
  std::vector<float> numbers;
  for (const auto& [row, column, rows, columns] : rectangles_of(piece)) {
    numbers.resize(static_cast<std::size_t>(columns));
    for (std::int64_t i = row; i < row + rows; ++i) {
      const std::int64_t first = (matrix.first_row + i * matrix.row_step) * matrix.columns + column;
      float scale = 0.0F;
      for (std::int64_t c = 0; c < columns; ++c) {
        const std::int64_t at = first + c;
        if (c == 0 || at % kMxfp4Block == 0) {
          scale = scale_of(matrix.scales[at / kMxfp4Block]);
        }
        const auto pair = std::to_integer<unsigned>(matrix.blocks[at / 2]);
        numbers[static_cast<std::size_t>(c)] =
            kNumbers[at % 2 == 0 ? pair & 0xfU : pair >> 4] * scale;
      }
      convert_elements(reinterpret_cast<const std::byte*>(numbers.data()), DType::kF32, to,
                       out.dtype(), columns);
      to += columns * size_of(out.dtype());
    }
  }
}

}  // namespace dstrain
