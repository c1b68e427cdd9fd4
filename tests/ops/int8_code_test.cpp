// Matrices in 8 bits a number: what is decoded is what the code says.
// tests/parity/quantization_test.cpp codes, and scripts/check_adapters compares with bitsandbytes.
#include "kernels/math/int8_code.h"

#include <cstring>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/ops/lab.h"
#include "tests/ops/lab_bytes.h"

namespace dstrain::test {

TEST_CASE("a matrix in 8 bits a number is decoded as its code says", "[ops][int8]") {
  for (const Int8Code& code :
       {Int8Code{.rows = 1, .columns = 16}, Int8Code{.rows = 70, .columns = 256},
        Int8Code{.rows = 33, .columns = 13}, Int8Code{.rows = 3, .columns = 520}}) {
    CAPTURE(code.rows, code.columns);
    Bytes bytes(static_cast<std::size_t>(code.bytes()), 0);
    const Values numbers = random_values(code.numel(), 7, 127.0);
    const Values sizes = random_values(code.rows, 8);
    Values expected;
    for (std::int64_t row = 0; row < code.rows; ++row) {
      const auto largest = static_cast<float>(1.5 + sizes[static_cast<std::size_t>(row)]);
      std::memcpy(bytes.data() + code.largest_at() + 4 * row, &largest, sizeof(largest));
      for (std::int64_t column = 0; column < code.columns; ++column) {
        const auto at = static_cast<std::size_t>(row * code.columns + column);
        const auto q = static_cast<std::int8_t>(numbers[at]);
        bytes[at] = static_cast<std::uint8_t>(q);
        expected.push_back(static_cast<double>(q) * static_cast<double>(largest) / 127.0);
      }
    }
    for (const DType dtype : kComputeDtypes) {
      CAPTURE(name_of(dtype));
      conforms({{"values", expected, relative_error_of(dtype), 1e-6}},
               [&](Lab& lab) -> std::vector<Values> {
                 const Tensor values = lab.unset(dtype, {code.rows, code.columns});
                 lab.ops().decode_int8(code, put_bytes(lab, bytes), values, lab.stream());
                 return {lab.get(values)};
               });
    }
  }
}

}  // namespace dstrain::test
