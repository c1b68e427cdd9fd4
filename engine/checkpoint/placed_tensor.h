// PlacedTensor: a whole tensor as it lies in somebody else's file: in its own dtype, row after row
// or transposed, alone or as a part of a larger one. Reading a piece of it converts and transposes
// on the way; nothing else is touched.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/plan/shard_map.h"
#include "kernels/core/tensor.h"

namespace dstrain {

struct PlacedTensor {
  const std::byte* first = nullptr;  ///< element 0
  DType dtype = DType::kF32;         ///< f32, bf16 or f16
  std::int64_t row_stride = 0;       ///< elements from one row to the next; none of a vector
  std::int64_t column_stride = 1;    ///< elements from one column to the next
  /// The length of the runs of elements in which it lies, each beginning run_stride after the one
  /// before; only where columns are neighbours. 0: it lies in one run.
  std::int64_t run = 0;
  std::int64_t run_stride = 0;
};

/// Calls visit(begin, count) for neighbours in the file among `count` elements of a tensor, from
/// the tensor's element `first` on. `place`: with a run and a run_stride.
template <typename Place, typename Visit>
void for_each_run(const Place& place, std::int64_t first, std::int64_t count, Visit&& visit) {
  while (count > 0) {
    const std::int64_t within = place.run == 0 ? first : first % place.run;
    const std::int64_t runs = place.run == 0 ? 0 : first / place.run;
    const std::int64_t size = place.run == 0 ? count : std::min(count, place.run - within);
    visit(runs * place.run_stride + within, size);
    first += size;
    count -= size;
  }
}

/// Rows and columns of a tensor, of which a vector is one row.
struct Rectangle {
  std::int64_t row = 0;
  std::int64_t column = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};
/// The elements of a piece of a tensor of one or two dims, in the piece's order: part of a row,
/// whole rows, part of a row.
std::vector<Rectangle> rectangles_of(const Piece& piece);

/// Fills `out`, piece.flat.size() elements of f32, bf16 or f16, with a piece of a tensor of one or
/// two dims; what does not fit is rounded to the nearest, ties to even.
void read_placed(const PlacedTensor& placed, const Piece& piece, Tensor out);

/// Converts `count` neighbouring elements of one dtype to another one.
void convert_elements(
    const std::byte* from, DType from_dtype, std::byte* to, DType to_dtype, std::int64_t count);

/// safetensors' names of the dtypes that weights come in: F32, BF16, F16; nothing for any other.
std::optional<DType> weight_dtype(std::string_view name);
std::string_view weight_dtype_name(DType dtype);

}  // namespace dstrain
