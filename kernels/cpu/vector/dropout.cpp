// Dropout of rows of the residual stream.
#include "kernels/cpu/vector/dropout.h"

#include "kernels/cpu/vector/parts.h"

namespace dstrain::DSTRAIN_ISA {
namespace {

template <typename T>
[[gnu::flatten]] void dropout(const DropoutBlock<T>& rows) {
  for_each_vec(rows.width, [&](std::int64_t i, auto width) {
    DropoutFactors factors;
    factors.fill(rows.dropout, 0, rows.block, static_cast<std::uint32_t>(rows.first_column + i));
    for (int row = rows.begin; row < rows.end; ++row) {
      const std::int64_t at = (row - rows.begin) * rows.width + i;
      store(rows.y + at, load(rows.x + at, width) * factors.along[row], width);
    }
  });
}

template <typename T>
void fill(TypedLoops<T>* loops) {
  loops->dropout = dropout<T>;
}

}  // namespace

void fill_dropout(VectorLoops* loops) {
  fill(&loops->f32);
  fill(&loops->bf16);
  fill(&loops->f16);
}

}  // namespace dstrain::DSTRAIN_ISA
