#include "engine/checkpoint/placed_tensor.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/core/check.h"

namespace dstrain {
namespace {

template <typename To, typename From>
To converted(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<To, BF16>) {
    return to_bf16(to_float(value));
  } else if constexpr (std::is_same_v<To, F16>) {
    return to_f16(to_float(value));
  } else {
    return to_float(value);
  }
}

/// Calls `visit` with a null pointer of the host type of `dtype`.
template <typename Visit>
void with_type(DType dtype, Visit&& visit) {
  switch (dtype) {
    case DType::kF32:
      return visit(static_cast<float*>(nullptr));
    case DType::kBF16:
      return visit(static_cast<BF16*>(nullptr));
    case DType::kF16:
      return visit(static_cast<F16*>(nullptr));
    default:
      check(false, "weights of {} are not converted", name_of(dtype));
  }
}

/// The same as with_type for two dtypes.
template <typename Visit>
void with_types(DType from, DType to, Visit&& visit) {
  with_type(from, [&](auto* from_type) {
    with_type(to, [&](auto* to_type) { visit(from_type, to_type); });
  });
}

/// Element `index` of a file's data, which need not be aligned there.
template <typename From>
From load(const std::byte* from, std::int64_t index) {
  From value;
  std::memcpy(&value, from + index * static_cast<std::int64_t>(sizeof(From)), sizeof(From));
  return value;
}

/// Copies contiguous elements. It is a function of its own so that the compiler sees that the two
/// do not overlap.
template <typename From, typename To>
void copy_run(const std::byte* __restrict from, To* __restrict to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = converted<To>(load<From>(from, i));
  }
}

/// Copies rows × columns, each at its own stride, to a dense `to`. It goes in tiles, so that
/// neither side leaves the cache while the other is traversed.
template <typename From, typename To>
void copy_strided(const std::byte* from,
                  std::int64_t row_stride,
                  std::int64_t column_stride,
                  To* to,
                  std::int64_t rows,
                  std::int64_t columns) {
  constexpr std::int64_t kTile = 64;
  for (std::int64_t row_tile = 0; row_tile < rows; row_tile += kTile) {
    const std::int64_t row_end = std::min(row_tile + kTile, rows);
    for (std::int64_t column_tile = 0; column_tile < columns; column_tile += kTile) {
      const std::int64_t column_end = std::min(column_tile + kTile, columns);
      for (std::int64_t row = row_tile; row < row_end; ++row) {
        for (std::int64_t column = column_tile; column < column_end; ++column) {
          to[row * columns + column] =
              converted<To>(load<From>(from, row * row_stride + column * column_stride));
        }
      }
    }
  }
}

}  // namespace

void convert_elements(
    const std::byte* from, DType from_dtype, std::byte* to, DType to_dtype, std::int64_t count) {
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, static_cast<std::size_t>(count * size_of(to_dtype)));
    return;
  }
  with_types(from_dtype, to_dtype, [&](auto* from_type, auto* to_type) {
    using From = std::remove_pointer_t<decltype(from_type)>;
    using To = std::remove_pointer_t<decltype(to_type)>;
    copy_run<From, To>(from, reinterpret_cast<To*>(to), count);
  });
}

std::vector<Rectangle> rectangles_of(const Piece& piece) {
  const int rank = piece.shape.rank();
  check(rank == 1 || rank == 2, "\"{}\" of shape {} is not a matrix", piece.tensor,
        piece.shape.to_string());
  const std::int64_t width = piece.box_extent[rank - 1];
  const std::int64_t first_row = rank == 2 ? piece.box_start[0] : 0;
  const std::int64_t first_column = piece.box_start[rank - 1];
  std::vector<Rectangle> rectangles;
  for (std::int64_t at = piece.flat.begin; at < piece.flat.end;) {
    const std::int64_t column = at % width;
    const std::int64_t left = piece.flat.end - at;
    const std::int64_t columns =
        column > 0 || left < width ? std::min(width - column, left) : width;
    const std::int64_t rows = columns == width ? left / width : 1;
    rectangles.push_back({first_row + at / width, first_column + column, rows, columns});
    at += rows * columns;
  }
  return rectangles;
}

void read_placed(const PlacedTensor& placed, const Piece& piece, Tensor out) {
  check(out.numel() == piece.flat.size(), "\"{}\": {} elements cannot take a piece of {}",
        piece.tensor, out.numel(), piece.flat.size());
  auto* to = static_cast<std::byte*>(out.data());
  for (const auto& [row, column, rows, columns] : rectangles_of(piece)) {
    const std::byte* const from =
        placed.first +
        (row * placed.row_stride + column * placed.column_stride) * size_of(placed.dtype);
    const std::int64_t count = rows * columns;
    if (placed.run > 0) {
      for (std::int64_t i = row; i < row + rows; ++i) {
        for_each_run(placed, i * placed.row_stride + column, columns,
                     [&](std::int64_t begin, std::int64_t size) {
                       convert_elements(placed.first + begin * size_of(placed.dtype), placed.dtype,
                                        to, out.dtype(), size);
                       to += size * size_of(out.dtype());
                     });
      }
      continue;
    }
    if (placed.column_stride == 1 && (rows == 1 || placed.row_stride == columns)) {
      convert_elements(from, placed.dtype, to, out.dtype(), count);
    } else {
      with_types(placed.dtype, out.dtype(), [&](auto* from_type, auto* to_type) {
        using From = std::remove_pointer_t<decltype(from_type)>;
        using To = std::remove_pointer_t<decltype(to_type)>;
        copy_strided<From, To>(from, placed.row_stride, placed.column_stride,
                               reinterpret_cast<To*>(to), rows, columns);
      });
    }
    to += count * size_of(out.dtype());
  }
}

std::optional<DType> weight_dtype(std::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == weight_dtype_name(dtype)) {
      return dtype;
    }
  }
  return std::nullopt;
}

std::string_view weight_dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    default:
      check(false, "weights are not stored as {}", name_of(dtype));
      return "";
  }
}

}  // namespace dstrain
