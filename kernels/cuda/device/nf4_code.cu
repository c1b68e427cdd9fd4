// A thread decodes 16 neighbours: 8 bytes of codes become one or two packs of 16 bytes. Floor: the
// bytes of the values.
#include "kernels/cuda/device/floats.cuh"
#include "kernels/cuda/device/nf4_code.h"

namespace dstrain::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPack = 16;  // numbers of a thread

__device__ const Levels<256> kDynamic = dynamic_levels();
__device__ const Levels<16> kLevels = kNf4Levels;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    decode_kernel(Nf4Code code, const std::uint8_t* coded, T* values) {
  const std::int64_t pack = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (pack >= code.numel() / kPack) {
    return;
  }
  const std::int64_t block = pack * kPack / Nf4Code::kBlock;
  const std::int64_t row = block / code.blocks_in_row();
  const std::int64_t whole = code.block_of(row, block - row * code.blocks_in_row());
  const float scale =
      reinterpret_cast<const float*>(coded + code.scales_at())[whole / Nf4Code::kScaleBlock];
  const float mean = *reinterpret_cast<const float*>(coded + code.mean_at());
  // Compiled without fused operations: product and sum are rounded one by one, as elsewhere.
  const float magnitude = kDynamic.of[coded[code.magnitudes_at() + block]] * scale + mean;
  const auto codes = reinterpret_cast<const Pack<std::uint8_t, kPack / 2>*>(coded)[pack];
  float x[kPack];
#pragma unroll
  for (int i = 0; i < kPack / 2; ++i) {
    x[2 * i] = kLevels.of[codes.values[i] >> 4] * magnitude;
    x[2 * i + 1] = kLevels.of[codes.values[i] & 15] * magnitude;
  }
  store(values + pack * kPack, x);
}

}  // namespace

template <typename T>
void decode_nf4(const Launch& to, const Nf4Code& code, const std::uint8_t* coded, T* values) {
  const std::int64_t packs = code.numel() / kPack;
  if (packs == 0) {
    return;
  }
  launch("decode_nf4", decode_kernel<T>,
         dim3(static_cast<unsigned>((packs + kThreads - 1) / kThreads)), dim3(kThreads), 0,
         to.stream, code, coded, values);
}

template void decode_nf4(const Launch&, const Nf4Code&, const std::uint8_t*, float*);
template void decode_nf4(const Launch&, const Nf4Code&, const std::uint8_t*, BF16*);
template void decode_nf4(const Launch&, const Nf4Code&, const std::uint8_t*, F16*);

}  // namespace dstrain::cuda
