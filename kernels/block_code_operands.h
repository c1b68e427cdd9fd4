// The checks that all devices share of the operands of block codes. Meanings: ops_list.inc.
#pragma once

#include "kernels/core/expect.h"
#include "kernels/math/block_code.h"

namespace dstrain {

/// Gives the elements of a part.
inline std::int64_t expect_block_code(const BlockCode& code,
                                      const CodedParts& parts,
                                      const ConstTensor& values,
                                      const ConstTensor& coded) {
  check(code.bits == 4 || code.bits == 8, "a block code of {} bits", code.bits);
  expect_compute_dtype(values.dtype(), "block code: values");
  check(parts.count >= 1 && parts.stride >= 1 &&
            values.numel() % (parts.count * BlockCode::kMultiple) == 0,
        "block code: {} values in {} parts, expected multiples of {} in each", values.numel(),
        parts.count, BlockCode::kMultiple);
  const std::int64_t elements = values.numel() / parts.count;
  expect(coded, "block code: coded", DType::kU8, parts.reach() * code.bytes(elements));
  for (const void* const data : {values.data(), coded.data()}) {
    check(reinterpret_cast<std::uintptr_t>(data) % BlockCode::kMultiple == 0,
          "block code: an operand is at {}, expected a multiple of {}", data, BlockCode::kMultiple);
  }
  return elements;
}

}  // namespace dstrain
