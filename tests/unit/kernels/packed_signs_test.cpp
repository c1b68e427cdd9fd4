// The bytes that signs travel in (kernels/math/sign_code.h).
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/math/sign_code.h"

namespace dstrain {

TEST_CASE("signs are packed as numpy.packbits packs them, and zero is positive",
          "[kernels][math]") {
  const float x_8[8] = {1.0F, -1.0F, 0.0F, -0.0F, -2.0F, -3.0F, 4.0F, -5.0F};
  CHECK(pack_signs(x_8) == 0b10110010);
  for (int byte = 0; byte < 256; ++byte) {
    std::vector<float> row;
    for (int i = 0; i < 8; ++i) {
      row.push_back(one_bit_value(packed_sign(static_cast<std::uint8_t>(byte), i), 0.5F));
    }
    CHECK(pack_signs(row.data()) == byte);
  }
}

}  // namespace dstrain
