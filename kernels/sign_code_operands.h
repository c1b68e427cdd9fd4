// The checks that all devices share of the operands of sign codes. Meanings: ops_list.inc.
#pragma once

#include <algorithm>

#include "kernels/core/expect.h"
#include "kernels/math/sign_code.h"

namespace dstrain {

/// Checks that messages with `sign_bytes` bytes of signs lie within `coded`.
inline void expect_sign_messages(const SignParts& parts,
                                 std::int64_t sign_bytes,
                                 const ConstTensor& coded) {
  check(parts.count >= 1 && parts.stride >= 0 && parts.signs >= 0 && parts.scale >= 0,
        "sign code: {} messages, {} bytes apart, signs at byte {} and the scale at byte {}",
        parts.count, parts.stride, parts.signs, parts.scale);
  const bool apart =
      parts.scale + 4 <= parts.signs || parts.signs + sign_bytes <= parts.scale || sign_bytes == 0;
  check(apart, "sign code: {} bytes of signs at byte {} lie over the scale at byte {}", sign_bytes,
        parts.signs, parts.scale);
  const std::int64_t reach = (parts.count - 1) * parts.stride +
                             std::max(parts.signs + sign_bytes, parts.scale + std::int64_t{4});
  check(coded.dtype() == DType::kU8 && coded.numel() >= reach && !coded.empty(),
        "sign code: coded is {} of shape {}, expected at least {} bytes", name_of(coded.dtype()),
        coded.shape().to_string(), reach);
  check(parts.scale % 4 == 0 && parts.stride % 4 == 0 &&
            reinterpret_cast<std::uintptr_t>(coded.data()) % 4 == 0,
        "sign code: a scale at byte {} of messages that are {} bytes apart from {} on, expected "
        "multiples of 4",
        parts.scale, parts.stride, coded.data());
}

/// Checks values that are coded, or decoded, chunk by chunk; gives their number.
inline std::int64_t expect_sign_chunks(const SignParts& parts,
                                       const ConstTensor& values,
                                       const ConstTensor& coded) {
  const std::int64_t n = values.numel();
  expect(values, "sign code: values", DType::kF32, n);
  check(parts.chunk >= 0 && parts.chunk % 8 == 0 && n <= parts.count * parts.chunk,
        "sign code: {} values in {} messages of {}, expected a multiple of 8 that suffices", n,
        parts.count, parts.chunk);
  expect_sign_messages(parts, parts.sign_bytes(), coded);
  return n;
}

/// Checks values that are the sum over all messages; gives their number.
inline std::int64_t expect_sign_sum(const SignParts& parts,
                                    const ConstTensor& coded,
                                    const ConstTensor& values) {
  const std::int64_t n = values.numel();
  expect(values, "sign code: values", DType::kF32, n);
  expect_sign_messages(parts, (n + 7) / 8, coded);
  return n;
}

}  // namespace dstrain
