// RMS norms of groups of columns.
#include <algorithm>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/group_norm_operands.h"

namespace dstrain {
namespace {

constexpr std::int64_t kRows = 16;

template <typename P>
P* moved(P* pointer, std::int64_t elements) {
  return pointer == nullptr ? nullptr : pointer + elements;
}

/// Rows [begin, end) of them.
template <typename T>
GroupNormRows<T> rows_of(GroupNormRows<T> norm, std::int64_t begin, std::int64_t end) {
  norm.rows = end - begin;
  norm.x = moved(norm.x, begin * norm.x_stride);
  norm.dy = moved(norm.dy, begin * norm.dy_stride);
  norm.squares = moved(norm.squares, begin * norm.groups);
  norm.products = moved(norm.products, begin * norm.groups);
  norm.out = moved(norm.out, begin * norm.out_stride);
  return norm;
}

}  // namespace

void CpuOps::group_squares(ConstColumns x,
                           std::int64_t group_width,
                           Tensor squares_NG,
                           Stream& stream) {
  with_loops(loops_, x.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
    const GroupNormRows<T> norm = squares_rows<T>(x, group_width, squares_NG);
    stream.run([=, this, &loops] {
      parallel_pieces(threads_, norm.rows, kRows, [&](std::int64_t begin, std::int64_t end) {
        loops.group_squares(rows_of(norm, begin, end),
                            pointer<float>(squares_NG) + begin * norm.groups);
      });
    });
  });
}

void CpuOps::group_products(ConstColumns dy,
                            ConstColumns x,
                            ConstTensor weight_W,
                            float weight_offset,
                            Tensor products_NG,
                            Stream& stream) {
  with_loops(loops_, x.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
    const GroupNormRows<T> norm = products_rows<T>(dy, x, weight_W, weight_offset, products_NG);
    stream.run([=, this, &loops] {
      parallel_pieces(threads_, norm.rows, kRows, [&](std::int64_t begin, std::int64_t end) {
        loops.group_products(rows_of(norm, begin, end),
                             pointer<float>(products_NG) + begin * norm.groups);
      });
    });
  });
}

void CpuOps::group_norm_forward(const GroupNormForward& norm, Stream& stream) {
  with_loops(loops_, norm.x.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
    const GroupNormRows<T> rows = forward_rows<T>(norm);
    stream.run([=, this, &loops] {
      parallel_pieces(threads_, rows.rows, kRows, [&](std::int64_t begin, std::int64_t end) {
        loops.group_norm_forward(rows_of(rows, begin, end));
      });
    });
  });
}

// Blocks of rows as in norm_backward: the same whatever the number of threads, added in order.
void CpuOps::group_norm_backward(const GroupNormBackward& norm, Stream& stream) {
  with_loops(loops_, norm.x.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
    const GroupNormRows<T> rows = backward_rows<T>(norm);
    stream.run([=, this, &loops] {
      constexpr std::int64_t kMostBlocks = 64;
      const std::int64_t block_rows = std::max(kRows, (rows.rows + kMostBlocks - 1) / kMostBlocks);
      const std::int64_t blocks = (rows.rows + block_rows - 1) / block_rows;
      const auto lease = scratch_.lease(blocks * rows.width * size_of(DType::kF32));
      float* const partials = lease.template as<float>();
      parallel_for(threads_, blocks, [&](std::int64_t block, int /*worker*/) {
        const std::int64_t first = block * block_rows;
        float* const sums = partials + block * rows.width;
        std::fill_n(sums, rows.width, 0.0F);
        loops.group_norm_backward(rows_of(rows, first, std::min(first + block_rows, rows.rows)),
                                  sums);
      });
      add_partials(partials, blocks, rows.width, rows.width, norm.weight_write,
                   pointer<float>(norm.dweight_W));
    });
  });
}

}  // namespace dstrain
