#include "engine/model/code_weights.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/f16.h"

namespace dstrain {
namespace {

constexpr Levels<256> kDynamicLevels = dynamic_levels();

/// The number of the nearest level; of two, the lower. Bounds lie halfway, rounded to f32.
template <int kCount>
std::uint8_t nearest(const Levels<kCount>& levels, float x) {
  int below = 0;
  for (int step = kCount / 2; step > 0; step /= 2) {
    const int middle = below + step;
    const float bound = (levels.of[middle - 1] + levels.of[middle]) / 2.0F;
    below = x > bound ? middle : below;
  }
  return static_cast<std::uint8_t>(below);
}

float largest_magnitude(const float* x, std::int64_t n) {
  float largest = 0.0F;
  for (std::int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::abs(x[i]));
  }
  return largest;
}

float inverse_of(float magnitude) {
  constexpr float kLeast = 1e-38F;
  return 1.0F / std::max(magnitude, kLeast);
}

void encode(const Nf4Code& code,
            std::span<const float> whole,
            std::span<std::byte> coded,
            int threads) {
  constexpr std::int64_t kBlock = Nf4Code::kBlock;
  check(std::ssize(whole) == code.all_rows * code.all_columns && std::ssize(coded) == code.bytes(),
        "{} numbers and {} bytes, expected {} and {}", whole.size(), coded.size(),
        code.all_rows * code.all_columns, code.bytes());
  std::fill(coded.begin(), coded.end(), std::byte{});
  const std::int64_t blocks = std::ssize(whole) / kBlock;
  std::vector<float> magnitudes(static_cast<std::size_t>(blocks));
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t block = 0; block < blocks; ++block) {
    magnitudes[static_cast<std::size_t>(block)] =
        largest_magnitude(whole.data() + block * kBlock, kBlock);
  }
  double sum = 0.0;
  for (const float magnitude : magnitudes) {
    sum += magnitude;
  }
  const auto mean =
      static_cast<float>(sum / static_cast<double>(std::max<std::int64_t>(1, blocks)));
  std::vector<float> scales(static_cast<std::size_t>(code.scales()));
  for (std::int64_t i = 0; i < std::ssize(scales); ++i) {
    float& scale = scales[static_cast<std::size_t>(i)];
    const std::int64_t end = std::min((i + 1) * Nf4Code::kScaleBlock, blocks);
    for (std::int64_t block = i * Nf4Code::kScaleBlock; block < end; ++block) {
      scale = std::max(scale, std::abs(magnitudes[static_cast<std::size_t>(block)] - mean));
    }
  }
  std::memcpy(coded.data() + code.scales_at(), scales.data(), 4 * scales.size());
  std::memcpy(coded.data() + code.mean_at(), &mean, sizeof(mean));
  auto* const codes = reinterpret_cast<std::uint8_t*>(coded.data());
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t row = 0; row < code.rows; ++row) {
    for (std::int64_t block = 0; block < code.blocks_in_row(); ++block) {
      const std::int64_t of_whole = code.block_of(row, block);
      const std::int64_t own = row * code.blocks_in_row() + block;
      const float magnitude = magnitudes[static_cast<std::size_t>(of_whole)];
      const float scale = scales[static_cast<std::size_t>(of_whole / Nf4Code::kScaleBlock)];
      codes[code.magnitudes_at() + own] =
          nearest(kDynamicLevels, (magnitude - mean) * inverse_of(scale));
      const float inverse = inverse_of(magnitude);
      const float* const x = whole.data() + of_whole * kBlock;
      for (std::int64_t i = 0; i < kBlock; i += 2) {
        const auto high = static_cast<unsigned>(nearest(kNf4Levels, x[i] * inverse));
        const auto low = static_cast<unsigned>(nearest(kNf4Levels, x[i + 1] * inverse));
        codes[(own * kBlock + i) / 2] = static_cast<std::uint8_t>(high << 4 | low);
      }
    }
  }
}

std::vector<float> decode(const Nf4Code& code, std::span<const std::byte> coded) {
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(coded.data());
  const auto number_at = [&](std::int64_t at) {
    float number = 0.0F;
    std::memcpy(&number, coded.data() + at, sizeof(number));
    return number;
  };
  const float mean = number_at(code.mean_at());
  std::vector<float> values;
  for (std::int64_t own = 0; own < code.numel() / Nf4Code::kBlock; ++own) {
    const std::int64_t of_whole =
        code.block_of(own / code.blocks_in_row(), own % code.blocks_in_row());
    const float scale = number_at(code.scales_at() + 4 * (of_whole / Nf4Code::kScaleBlock));
    const float magnitude = kDynamicLevels.of[bytes[code.magnitudes_at() + own]] * scale + mean;
    for (std::int64_t i = 0; i < Nf4Code::kBlock / 2; ++i) {
      const std::uint8_t pair = bytes[own * Nf4Code::kBlock / 2 + i];
      values.push_back(kNf4Levels.of[pair >> 4] * magnitude);
      values.push_back(kNf4Levels.of[pair & 15] * magnitude);
    }
  }
  return values;
}

// As bitsandbytes has it, of numbers that are rounded to f16 first, ties to even.
void encode(const Int8Code& code,
            std::span<const float> whole,
            std::span<std::byte> coded,
            int threads) {
  check(std::ssize(whole) == code.all_rows * code.all_columns && std::ssize(coded) == code.bytes(),
        "{} numbers and {} bytes, expected {} and {}", whole.size(), coded.size(),
        code.all_rows * code.all_columns, code.bytes());
  std::fill(coded.begin(), coded.end(), std::byte{});
  auto* const numbers = reinterpret_cast<std::int8_t*>(coded.data());
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t row = 0; row < code.rows; ++row) {
    const float* const x = whole.data() + (code.first_row + row) * code.all_columns;
    float largest = 0.0F;
    for (std::int64_t i = 0; i < code.all_columns; ++i) {
      largest = std::max(largest, std::abs(to_float(to_f16(x[i]))));
    }
    // PyTorch divides so: many numbers of f16 lie halfway between two codes.
    const float factor = largest > 0.0F ? 1.0F / largest * 127.0F : 0.0F;
    for (std::int64_t i = 0; i < code.columns; ++i) {
      const float rounded = to_float(to_f16(x[code.first_column + i]));
      numbers[row * code.columns + i] = static_cast<std::int8_t>(std::nearbyint(rounded * factor));
    }
    std::memcpy(coded.data() + code.largest_at() + 4 * row, &largest, sizeof(largest));
  }
}

std::vector<float> decode(const Int8Code& code, std::span<const std::byte> coded) {
  const auto* const numbers = reinterpret_cast<const std::int8_t*>(coded.data());
  std::vector<float> values;
  for (std::int64_t row = 0; row < code.rows; ++row) {
    float largest = 0.0F;
    std::memcpy(&largest, coded.data() + code.largest_at() + 4 * row, sizeof(largest));
    for (std::int64_t i = 0; i < code.columns; ++i) {
      values.push_back(static_cast<float>(numbers[row * code.columns + i]) *
                       Int8Code::scale_of(largest));
    }
  }
  return values;
}

}  // namespace

void code_weights(const WeightCode& code,
                  std::span<const float> whole,
                  std::span<std::byte> coded,
                  int threads) {
  std::visit([&](const auto& one) { encode(one, whole, coded, threads); }, code);
}

std::vector<float> decoded_weights(const WeightCode& code, std::span<const std::byte> coded) {
  return std::visit([&](const auto& one) { return decode(one, coded); }, code);
}

}  // namespace dstrain
