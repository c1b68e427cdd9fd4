// PlacedTensor: a whole tensor as it lies in somebody else's file: in its own dtype, row after row
// or transposed, alone or as a part of a larger one. Reading a piece of it converts and transposes
// on the way; nothing else is touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/plan/shard_map.h"
#include "kernels/core/tensor.h"

namespace dstrain {

struct PlacedTensor {
  const std::byte* first = nullptr;  ///< element 0
  DType dtype = DType::kF32;         ///< f32, bf16 or f16
  std::int64_t row_stride = 0;       ///< elements from one row to the next; none of a vector
  std::int64_t column_stride = 1;    ///< elements from one column to the next
};

/// Fills `out`, piece.flat.size() elements of f32, bf16 or f16, with a piece of a tensor of one or
/// two dims; what does not fit is rounded to the nearest, ties to even.
void read_placed(const PlacedTensor& placed, const Piece& piece, Tensor out);

/// `count` neighbouring elements of one dtype as another one.
void convert_elements(
    const std::byte* from, DType from_dtype, std::byte* to, DType to_dtype, std::int64_t count);

/// safetensors' names of the dtypes that weights come in: F32, BF16, F16; nothing for any other.
std::optional<DType> weight_dtype(std::string_view name);
std::string_view weight_dtype_name(DType dtype);

}  // namespace dstrain
