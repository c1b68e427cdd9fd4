// Codes floats by their signs (kernels/math/sign_code.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "kernels/math/sign_code.h"

namespace dstrain::cuda {

void encode_signs(const Launch& to,
                  const SignParts& parts,
                  std::int64_t n,
                  float* values,
                  const double* squares,
                  std::uint8_t* coded);
void sum_signs(const Launch& to,
               const SignParts& parts,
               std::int64_t n,
               const std::uint8_t* coded,
               float factor,
               float* values,
               bool adds);
void decode_signs(const Launch& to,
                  const SignParts& parts,
                  std::int64_t n,
                  const std::uint8_t* coded,
                  float* values);

}  // namespace dstrain::cuda
