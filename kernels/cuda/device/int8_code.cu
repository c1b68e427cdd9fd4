// A thread decodes packs of eight neighbours of one row, where rows consist of packs, or single
// numbers. Floor: the bytes of the values.
#include "kernels/cuda/device/elementwise.cuh"
#include "kernels/cuda/device/floats.cuh"
#include "kernels/cuda/device/int8_code.h"

namespace dstrain::cuda {
namespace {

template <typename T>
struct DecodeInt8 {
  const std::int8_t* coded;
  const float* largest;
  std::int64_t columns;
  T* values;

  template <int kWidth>
  __device__ void at(std::int64_t i) const {
    const float scale = Int8Code::scale_of(largest[i / columns]);
    float x[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      x[k] = static_cast<float>(coded[i + k]) * scale;
    }
    store(values + i, x);
  }
};

}  // namespace

template <typename T>
void decode_int8(const Launch& to, const Int8Code& code, const std::uint8_t* coded, T* values) {
  launch_elementwise("decode_int8", to, code.numel(),
                     all_aligned(values) && code.columns % kPackWidth == 0,
                     DecodeInt8<T>{reinterpret_cast<const std::int8_t*>(coded),
                                   reinterpret_cast<const float*>(coded + code.largest_at()),
                                   code.columns, values});
}

template void decode_int8(const Launch&, const Int8Code&, const std::uint8_t*, float*);
template void decode_int8(const Launch&, const Int8Code&, const std::uint8_t*, BF16*);
template void decode_int8(const Launch&, const Int8Code&, const std::uint8_t*, F16*);

}  // namespace dstrain::cuda
