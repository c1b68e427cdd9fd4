// The checks that all devices share of the operands of top codes. Meanings: ops_list.inc.
#pragma once

#include "kernels/core/expect.h"
#include "kernels/math/top_code.h"

namespace dstrain {

/// Checks values and `messages` messages; gives the number of values.
inline std::int64_t expect_top_code(const TopCode& code,
                                    std::int64_t messages,
                                    const ConstTensor& values,
                                    const ConstTensor& coded) {
  check(1 <= code.keep && code.keep <= TopCode::kBlock && messages >= 1,
        "top code: {} messages of {} numbers of each block, expected at least 1, and 1 to {}",
        messages, code.keep, TopCode::kBlock);
  const std::int64_t n = values.numel();
  expect(values, "top code: values", DType::kF32, n);
  expect(coded, "top code: coded", DType::kU8, messages * code.bytes(n));
  check(reinterpret_cast<std::uintptr_t>(coded.data()) % 4 == 0,
        "top code: coded is at {}, expected a multiple of 4", coded.data());
  return n;
}

}  // namespace dstrain
