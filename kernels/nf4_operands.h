// The checks that all devices share of the operands of decode_nf4. Meaning: ops_list.inc.
#pragma once

#include "kernels/core/expect.h"
#include "kernels/math/nf4_code.h"

namespace dstrain {

inline void expect_nf4(const Nf4Code& code, const ConstTensor& coded, const ConstTensor& values) {
  expect_compute_dtype(values.dtype(), "nf4: values");
  check(
      code.columns % Nf4Code::kBlock == 0 && code.first_column % Nf4Code::kBlock == 0 &&
          code.all_columns % Nf4Code::kBlock == 0 && code.first_row + code.rows <= code.all_rows &&
          code.first_column + code.columns <= code.all_columns,
      "nf4: rows {}+{} of {} and columns {}+{} of {}, expected multiples of {} columns within them",
      code.first_row, code.rows, code.all_rows, code.first_column, code.columns, code.all_columns,
      Nf4Code::kBlock);
  expect(coded, "nf4: coded", DType::kU8, code.bytes());
  check(values.numel() == code.numel(), "nf4: {} values, expected {}", values.numel(),
        code.numel());
  check(reinterpret_cast<std::uintptr_t>(coded.data()) % 8 == 0,
        "nf4: coded is at {}, expected a multiple of 8", coded.data());
}

}  // namespace dstrain
