// Matrices in 4 bits a number: what is decoded is what the code says, of a part as of the whole.
// tests/parity/quantization_test.cpp compares with bitsandbytes.
#include "kernels/math/nf4_code.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/ops/lab.h"
#include "tests/ops/lab_bytes.h"

namespace dstrain::test {
namespace {

constexpr std::int64_t kBlock = Nf4Code::kBlock;

/// Codes at random of a part, with scales and a mean.
Bytes random_code(const Nf4Code& code, std::uint64_t seed) {
  Bytes bytes(static_cast<std::size_t>(code.bytes()), 0);
  const Values numbers = random_values(code.bytes(), seed, 127.0);
  for (std::int64_t i = 0; i < code.scales_at(); ++i) {
    bytes[static_cast<std::size_t>(i)] =
        static_cast<std::uint8_t>(static_cast<int>(numbers[static_cast<std::size_t>(i)]) + 127);
  }
  for (std::int64_t i = 0; i <= code.scales(); ++i) {
    const auto value = static_cast<float>(2.0 + numbers[static_cast<std::size_t>(i)] / 127.0);
    std::memcpy(bytes.data() + code.scales_at() + 4 * i, &value, sizeof(value));
  }
  return bytes;
}

Values expected(const Nf4Code& code, const Bytes& bytes) {
  const Levels<256> dynamic = dynamic_levels();
  const auto number = [&](std::int64_t at) {
    float value = 0.0F;
    std::memcpy(&value, bytes.data() + at, sizeof(value));
    return static_cast<double>(value);
  };
  Values values;
  for (std::int64_t i = 0; i < code.numel(); ++i) {
    const std::int64_t row = i / code.columns;
    const std::int64_t block = code.block_of(row, i % code.columns / kBlock);
    const std::uint8_t pair = bytes[static_cast<std::size_t>(i / 2)];
    const std::uint8_t c = bytes[static_cast<std::size_t>(code.magnitudes_at() + i / kBlock)];
    const double magnitude =
        dynamic.of[c] * number(code.scales_at() + 4 * (block / Nf4Code::kScaleBlock)) +
        number(code.mean_at());
    values.push_back(kNf4Levels.of[i % 2 == 0 ? pair >> 4 : pair & 15] * magnitude);
  }
  return values;
}

TEST_CASE("a matrix in 4 bits a number is decoded as its code says", "[ops][nf4]") {
  const Nf4Code codes[] = {
      {.rows = 3, .columns = 64, .all_rows = 3, .all_columns = 64},
      {.rows = 70, .columns = 256, .all_rows = 70, .all_columns = 256},
      // Parts: rows, and columns, of a matrix with several blocks of scales.
      {.rows = 35, .columns = 256, .first_row = 35, .all_rows = 70, .all_columns = 256},
      {.rows = 300, .columns = 64, .first_column = 128, .all_rows = 300, .all_columns = 192}};
  for (const Nf4Code& code : codes) {
    CAPTURE(code.rows, code.columns);
    const Bytes bytes = random_code(code, 7);
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      conforms({{"values", expected(code, bytes), relative_error_of(dtype), 1e-6}},
               [&](Lab& lab) -> std::vector<Values> {
                 const Tensor values = lab.unset(dtype, {code.rows, code.columns});
                 lab.ops().decode_nf4(code, put_bytes(lab, bytes), values, lab.stream());
                 return {lab.get(values)};
               });
    }
  }
}

}  // namespace
}  // namespace dstrain::test
