// A warp codes a block, eight neighbours a thread. Floor: the
// bytes of the values and of the codes.
#include "kernels/cuda/device/block_code.h"
#include "kernels/cuda/device/block_sum.cuh"
#include "kernels/cuda/device/floats.cuh"

namespace dstrain::cuda {
namespace {

constexpr int kPack = 8;  // codes that a thread moves at a time: as many bytes
constexpr std::uint32_t kMagnitude = 0x7fffffffU;

struct LargerMagnitude {
  __device__ std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const {
    return a > b ? a : b;
  }
};

/// Where a block's values, codes and scale are.
struct Place {
  std::int64_t first;
  std::int64_t size;
  std::int64_t codes;
  std::int64_t scale;
};

template <int kBits>
__device__ Place place_of(std::int64_t elements, std::int64_t stride) {
  constexpr BlockCode kCode{kBits};
  const std::int64_t blocks = kCode.blocks(elements);
  const std::int64_t part = blockIdx.x / blocks;
  const std::int64_t block = blockIdx.x % blocks;
  const std::int64_t first = block * kCode.block();
  const std::int64_t begin = part * stride * kCode.bytes(elements);
  const std::int64_t left = elements - first;
  return {part * elements + first, left < kCode.block() ? left : kCode.block(),
          begin + kCode.code_bytes(first),
          begin + kCode.scale_offset(elements) + block * static_cast<std::int64_t>(sizeof(float))};
}

__device__ std::uint32_t integer(float x, float inverse) {
  return __builtin_bit_cast(std::uint32_t, x * inverse + kToInteger);
}

/// The integer of `kBits` bits that a code ends with.
template <int kBits>
__device__ float value_of(std::uint32_t code) {
  constexpr std::uint32_t kSign = 1U << (kBits - 1);
  const std::uint32_t shifted = (code & (2 * kSign - 1)) ^ kSign;
  return static_cast<float>(static_cast<int>(shifted) - static_cast<int>(kSign));
}

template <typename T>
__device__ void write(T* to, const float (&values)[kPack], bool adds) {
  float sums[kPack];
  if (adds) {
    load(to, sums);
  }
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    sums[k] = adds ? sums[k] + values[k] : values[k];
  }
  store(to, sums);
}

template <int kBits, typename T>
__global__ void encode_kernel(const T* values,
                              std::uint8_t* coded,
                              std::int64_t elements,
                              std::int64_t stride) {
  const Place place = place_of<kBits>(elements, stride);
  const T* const x = values + place.first;
  std::uint32_t largest = 0;
  for (std::int64_t i = std::int64_t{threadIdx.x} * kPack; i < place.size;
       i += std::int64_t{blockDim.x} * kPack) {
    float pack[kPack];
    load(x + i, pack);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      const std::uint32_t magnitude = __builtin_bit_cast(std::uint32_t, pack[k]) & kMagnitude;
      largest = magnitude > largest ? magnitude : largest;
    }
  }
  largest = block_reduce(largest, 0U, LargerMagnitude{});
  const BlockScale scale =
      block_scale(__builtin_bit_cast(float, largest), BlockCode{kBits}.largest());
  if (threadIdx.x == 0) {
    *reinterpret_cast<float*>(coded + place.scale) = scale.scale;
  }
  const std::int64_t bytes = place.size * kBits / 8;
  for (std::int64_t i = std::int64_t{threadIdx.x} * kPack; i < bytes;
       i += std::int64_t{blockDim.x} * kPack) {
    float low[kPack];
    load(x + i, low);
    Pack<std::uint8_t, kPack> codes;
    if constexpr (kBits == 8) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        codes.values[k] = static_cast<std::uint8_t>(integer(low[k], scale.inverse) & 0xffU);
      }
    } else {
      float high[kPack];
      load(x + bytes + i, high);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        codes.values[k] =
            static_cast<std::uint8_t>((integer(low[k], scale.inverse) & 0xfU) |
                                      ((integer(high[k], scale.inverse) & 0xfU) << 4));
      }
    }
    *reinterpret_cast<Pack<std::uint8_t, kPack>*>(coded + place.codes + i) = codes;
  }
}

template <int kBits, typename T>
__global__ void decode_kernel(
    const std::uint8_t* coded, T* values, std::int64_t elements, std::int64_t stride, bool adds) {
  const Place place = place_of<kBits>(elements, stride);
  const float scale = *reinterpret_cast<const float*>(coded + place.scale);
  T* const y = values + place.first;
  const std::int64_t bytes = place.size * kBits / 8;
  for (std::int64_t i = std::int64_t{threadIdx.x} * kPack; i < bytes;
       i += std::int64_t{blockDim.x} * kPack) {
    const auto codes = *reinterpret_cast<const Pack<std::uint8_t, kPack>*>(coded + place.codes + i);
    float low[kPack];
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      low[k] = value_of<kBits>(codes.values[k]) * scale;
    }
    write(y + i, low, adds);
    if constexpr (kBits == 4) {
      float high[kPack];
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        high[k] = value_of<kBits>(static_cast<std::uint32_t>(codes.values[k]) >> 4) * scale;
      }
      write(y + bytes + i, high, adds);
    }
  }
}

dim3 grid_of(const BlockCode& code, const CodedParts& parts, std::int64_t elements) {
  return dim3(static_cast<unsigned>(parts.count * code.blocks(elements)));
}
dim3 threads_of_block() {
  return dim3(static_cast<unsigned>(BlockCode::block() / kPack));
}

}  // namespace

template <typename T>
void encode_blocks(const Launch& to,
                   const BlockCode& code,
                   const CodedParts& parts,
                   std::int64_t elements,
                   const T* values,
                   std::uint8_t* coded) {
  if (elements == 0) {
    return;
  }
  launch("encode_blocks", code.bits == 8 ? encode_kernel<8, T> : encode_kernel<4, T>,
         grid_of(code, parts, elements), threads_of_block(), 0, to.stream, values, coded, elements,
         parts.stride);
}

template <typename T>
void decode_blocks(const Launch& to,
                   const BlockCode& code,
                   const CodedParts& parts,
                   std::int64_t elements,
                   const std::uint8_t* coded,
                   T* values,
                   bool adds) {
  if (elements == 0) {
    return;
  }
  launch("decode_blocks", code.bits == 8 ? decode_kernel<8, T> : decode_kernel<4, T>,
         grid_of(code, parts, elements), threads_of_block(), 0, to.stream, coded, values, elements,
         parts.stride, adds);
}

template void encode_blocks(
    const Launch&, const BlockCode&, const CodedParts&, std::int64_t, const float*, std::uint8_t*);
template void encode_blocks(
    const Launch&, const BlockCode&, const CodedParts&, std::int64_t, const BF16*, std::uint8_t*);
template void encode_blocks(
    const Launch&, const BlockCode&, const CodedParts&, std::int64_t, const F16*, std::uint8_t*);
template void decode_blocks(const Launch&,
                            const BlockCode&,
                            const CodedParts&,
                            std::int64_t,
                            const std::uint8_t*,
                            float*,
                            bool);
template void decode_blocks(const Launch&,
                            const BlockCode&,
                            const CodedParts&,
                            std::int64_t,
                            const std::uint8_t*,
                            BF16*,
                            bool);
template void decode_blocks(const Launch&,
                            const BlockCode&,
                            const CodedParts&,
                            std::int64_t,
                            const std::uint8_t*,
                            F16*,
                            bool);

}  // namespace dstrain::cuda
