// Messages of bytes in a lab.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/ops/lab.h"

namespace dstrain::test {

using Bytes = std::vector<std::uint8_t>;

inline Bytes get_bytes(Lab& lab, ConstTensor tensor) {
  Bytes bytes(static_cast<std::size_t>(tensor.bytes()));
  lab.device().copy_to_host(tensor, bytes.data(), lab.stream());
  lab.stream().synchronize();
  return bytes;
}
inline Tensor put_bytes(Lab& lab, const Bytes& bytes) {
  const Tensor tensor = lab.unset(DType::kU8, {static_cast<std::int64_t>(bytes.size())});
  lab.device().copy_from_host(bytes.data(), tensor, lab.stream());
  lab.stream().synchronize();
  return tensor;
}

}  // namespace dstrain::test
