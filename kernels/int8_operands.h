// The checks that all devices share of the operands of decode_int8. Meaning: ops_list.inc.
#pragma once

#include "kernels/core/expect.h"
#include "kernels/math/int8_code.h"

namespace dstrain {

inline void expect_int8(const Int8Code& code, const ConstTensor& coded, const ConstTensor& values) {
  expect_compute_dtype(values.dtype(), "int8: values");
  expect(coded, "int8: coded", DType::kU8, code.bytes());
  check(values.numel() == code.numel(), "int8: {} values, expected {}", values.numel(),
        code.numel());
  check(reinterpret_cast<std::uintptr_t>(coded.data()) % 8 == 0,
        "int8: coded is at {}, expected a multiple of 8", coded.data());
}

}  // namespace dstrain
