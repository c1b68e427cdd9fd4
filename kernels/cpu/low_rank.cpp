// What low-rank adapters compute, in one pass over the wide operand each, which may be some columns
// of a matrix. Rows are shared out among threads, or, for gradients, columns: so sums are added in
// one order on any number of threads.
//
// N tokens, C columns, R ranks; the factor T is [R, C]
#include <algorithm>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/operation_work.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/low_rank_operands.h"

namespace dstrain {
namespace {

constexpr std::int64_t kRowsOfPiece = 16;

std::int64_t panels_of(const LowRankSizes& sizes) {
  return (sizes.columns + kRankPanel - 1) / kRankPanel;
}

std::int64_t panel_floats(const LowRankSizes& sizes) {
  return sizes.ranks * kRankPanel;
}

std::int64_t columns_of_panel(const LowRankSizes& sizes, std::int64_t panel) {
  return std::min(kRankPanel, sizes.columns - panel * kRankPanel);
}

template <typename T>
void pack(int threads,
          const TypedLoops<T>& loops,
          const LowRankSizes& sizes,
          const T* factor,
          bool transposed,
          LowRankUse use,
          float* panels) {
  parallel_pieces(threads, panels_of(sizes), 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t panel = begin; panel < end; ++panel) {
      const std::int64_t column = panel * kRankPanel;
      loops.pack_rank_panel({.use = use,
                             .transposed = transposed,
                             .ranks = sizes.ranks,
                             .columns = columns_of_panel(sizes, panel),
                             .stride = sizes.columns,
                             .t = factor + column * (transposed ? sizes.ranks : 1)},
                            panels + panel * panel_floats(sizes));
    }
  });
}

}  // namespace

void CpuOps::reduce_to_rank(ConstColumns x_NC,
                            ConstTensor factor,
                            bool transposed,
                            float scale,
                            Tensor h_NR,
                            Stream& stream) {
  const LowRankSizes sizes = expect_low_rank(h_NR, x_NC, factor, x_NC.dtype(), transposed);
  stream.run([=, this] {
    TraceSpan::add_work({.flops = 2 * sizes.tokens * sizes.columns * sizes.ranks},
                        {sizes.tokens, sizes.columns, sizes.ranks});
    const auto scratch =
        scratch_.lease(panels_of(sizes) * panel_floats(sizes) * size_of(DType::kF32));
    with_loops(loops_, x_NC.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      float* const panels = scratch.as<float>();
      pack(threads_, loops, sizes, pointer<T>(factor), transposed, LowRankUse::kReduce, panels);
      parallel_pieces(
          threads_, sizes.tokens, kRowsOfPiece, [&](std::int64_t begin, std::int64_t end) {
            loops.reduce_to_rank({.rows = end - begin,
                                  .columns = sizes.columns,
                                  .ranks = sizes.ranks,
                                  .stride = x_NC.stride(),
                                  .scale = scale,
                                  .panels = panels,
                                  .numbers = nullptr,
                                  .numbers_written = pointer<T>(h_NR) + begin * sizes.ranks,
                                  .wide = x_NC.begin<T>() + begin * x_NC.stride(),
                                  .wide_written = nullptr});
          });
    });
  });
}

void CpuOps::add_from_rank(
    ConstTensor h_NR, ConstTensor factor, bool transposed, Columns y_NC, Stream& stream) {
  const LowRankSizes sizes = expect_low_rank(h_NR, y_NC, factor, y_NC.dtype(), transposed);
  stream.run([=, this] {
    TraceSpan::add_work({.flops = 2 * sizes.tokens * sizes.columns * sizes.ranks},
                        {sizes.tokens, sizes.columns, sizes.ranks});
    const std::int64_t of_piece = (kRowsOfPiece + 1) * (sizes.ranks + 1);
    const auto scratch = scratch_.lease(
        (panels_of(sizes) * panel_floats(sizes) + threads_ * of_piece) * size_of(DType::kF32));
    with_loops(loops_, y_NC.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      float* const panels = scratch.as<float>();
      float* const packed = panels + panels_of(sizes) * panel_floats(sizes);
      pack(threads_, loops, sizes, pointer<T>(factor), transposed, LowRankUse::kAdd, panels);
      const std::int64_t pieces = (sizes.tokens + kRowsOfPiece - 1) / kRowsOfPiece;
      parallel_for(threads_, pieces, [&](std::int64_t piece, int worker) {
        const std::int64_t begin = piece * kRowsOfPiece;
        const std::int64_t rows = std::min(kRowsOfPiece, sizes.tokens - begin);
        float* const numbers = packed + worker * of_piece;
        loops.pack_rank_numbers(LowRankUse::kAdd, pointer<T>(h_NR) + begin * sizes.ranks, rows,
                                sizes.ranks, numbers);
        loops.add_from_rank({.rows = rows,
                             .columns = sizes.columns,
                             .ranks = sizes.ranks,
                             .stride = y_NC.stride(),
                             .scale = 1.0F,
                             .panels = panels,
                             .numbers = numbers,
                             .numbers_written = nullptr,
                             .wide = nullptr,
                             .wide_written = y_NC.begin<T>() + begin * y_NC.stride()});
      });
    });
  });
}

void CpuOps::rank_gradient(ConstTensor h_NR,
                           ConstColumns x_NC,
                           Tensor d_factor,
                           bool transposed,
                           Write write,
                           Stream& stream) {
  const LowRankSizes sizes = expect_low_rank(h_NR, x_NC, d_factor, DType::kF32, transposed);
  stream.run([=, this] {
    TraceSpan::add_work({.flops = 2 * sizes.tokens * sizes.columns * sizes.ranks},
                        {sizes.tokens, sizes.columns, sizes.ranks});
    const std::int64_t count = (sizes.tokens + 1) * sizes.ranks;
    const auto scratch =
        scratch_.lease((count + threads_ * panel_floats(sizes)) * size_of(DType::kF32));
    with_loops(loops_, x_NC.dtype(), [&]<typename T>(const TypedLoops<T>& loops) {
      float* const numbers = scratch.as<float>();
      loops.pack_rank_numbers(LowRankUse::kGradient, pointer<T>(h_NR), sizes.tokens, sizes.ranks,
                              numbers);
      parallel_for(threads_, panels_of(sizes), [&](std::int64_t panel, int worker) {
        float* const sums = numbers + count + worker * panel_floats(sizes);
        const std::int64_t column = panel * kRankPanel;
        const std::int64_t columns = columns_of_panel(sizes, panel);
        loops.rank_gradient({.rows = sizes.tokens,
                             .columns = columns,
                             .ranks = sizes.ranks,
                             .stride = x_NC.stride(),
                             .scale = 1.0F,
                             .panels = nullptr,
                             .numbers = numbers,
                             .numbers_written = nullptr,
                             .wide = x_NC.begin<T>() + column,
                             .wide_written = nullptr},
                            sums);
        auto* const to = pointer<float>(d_factor);
        const std::int64_t from_rank = transposed ? 1 : sizes.columns;
        const std::int64_t from_column = transposed ? sizes.ranks : 1;
        for (std::int64_t r = 0; r < sizes.ranks; ++r) {
          for (std::int64_t c = 0; c < columns; ++c) {
            float& place = to[r * from_rank + (column + c) * from_column];
            const float sum = sums[r * kRankPanel + c];
            place = write == Write::kAdd ? place + sum : sum;
          }
        }
      });
    });
  });
}

}  // namespace dstrain
