// WeightCode: how a matrix that is not trained lies in few bits a number.
#pragma once

#include <cstdint>
#include <variant>

#include "kernels/math/int8_code.h"
#include "kernels/math/nf4_code.h"

namespace dstrain {

using WeightCode = std::variant<Nf4Code, Int8Code>;

inline std::int64_t bytes_of(const WeightCode& code) {
  return std::visit([](const auto& one) { return one.bytes(); }, code);
}

}  // namespace dstrain
