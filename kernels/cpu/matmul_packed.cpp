#include "kernels/cpu/matmul_packed.h"

#include <algorithm>

#include "kernels/cpu/matmul_cut.h"
#include "kernels/cpu/parallel_for.h"

namespace dstrain {
namespace {

constexpr std::int64_t kTerms = 256;           // of a tile at a time: half a first cache
constexpr std::int64_t kColumns = 128;         // of a task
constexpr std::int64_t kRowPanels = 16;        // that stay in the second cache beside its columns
constexpr std::int64_t kPackedRows = 8 << 20;  // bytes of A that are packed at once
constexpr std::int64_t kFewestRows = 1024;     // for which columns are worth packing
constexpr std::int64_t kMostSums = 16 << 20;   // bytes, where C has no place for them

}  // namespace

/// One product, and the part of it that is under way: columns, and the rows and terms of A that are
/// packed.
template <typename T>
struct PackedMatmul::Plan {
  const DenseProduct<T>& product;
  std::int64_t tile_rows;
  Range columns;
  Range rows;
  Range terms;
  std::int64_t chunk_terms;  ///< of one sum, whatever else is computed
  /// Where the sums of the first row and column are kept between parts with other terms; nullptr:
  /// not at all.
  float* sums = nullptr;
  std::int64_t sums_stride = 0;

  [[nodiscard]] Cut chunks() const { return {terms.size, chunk_terms, chunk_terms}; }
  [[nodiscard]] std::int64_t panels() const { return ceil_div(rows.size, tile_rows); }
  /// From one packed panel to the next, of a chunk of terms.
  [[nodiscard]] static std::int64_t panel_stride(std::int64_t terms_of_it, std::int64_t tile) {
    return terms_of_it * tile + kPanelPadding;
  }
  /// The place of a panel among what is packed.
  [[nodiscard]] std::int64_t place(std::int64_t chunk, std::int64_t panel) const {
    const Cut cut = chunks();
    return chunk * panels() * panel_stride(cut.size, tile_rows) +
           panel * panel_stride(chunk < cut.parts ? cut.size_of_part(chunk) : 0, tile_rows);
  }
};

PackedMatmul::PackedMatmul(int threads, const VectorLoops& loops)
    : threads_(threads), loops_(loops), workers_(static_cast<std::size_t>(threads)) {}

void PackedMatmul::run(const DenseProduct<float>& product) {
  run_any(product, loops_.f32);
}
void PackedMatmul::run(const DenseProduct<BF16>& product) {
  run_any(product, loops_.bf16);
}
void PackedMatmul::run(const DenseProduct<F16>& product) {
  run_any(product, loops_.f16);
}

template <typename T>
void PackedMatmul::run_any(const DenseProduct<T>& product, const TypedLoops<T>& loops) {
  const ProductForm& form = product.form;
  if (product.bias != nullptr) {
    loops.cast_to_f32(product.bias, bias_.grow<float>(form.n), form.n);
  }
  if (form.m <= FewRowsProduct<T>::kMostRows && form.k > 0 && !form.a_transposed &&
      form.b_transposed && form.write == Write::kOverwrite) {
    run_few_rows(product, loops);
  } else {
    run_blocks(product, loops);
  }
}

template <typename T>
void PackedMatmul::run_few_rows(const DenseProduct<T>& product, const TypedLoops<T>& loops) {
  const ProductForm& form = product.form;
  const std::int64_t tile = loops_.tile_columns;
  const Cut chunks(form.k, kTerms, 1);
  const std::int64_t panel_stride = chunks.size * tile + kPanelPadding;
  const std::int64_t chunk_stride = ceil_div(form.m, tile) * panel_stride;
  float* const packed = rows_.grow<float>(chunks.parts * chunk_stride);
  parallel_for(threads_, chunks.parts, [&](std::int64_t chunk, int /*worker*/) {
    loops.pack_columns({.from = product.a + chunks.begin(chunk),
                        .vectors_together = false,
                        .stride = form.k,
                        .vectors = form.m,
                        .terms = chunks.size_of_part(chunk),
                        .panel_stride = panel_stride},
                       packed + chunk * chunk_stride);
  });
  const Cut columns(form.n, kColumns, 2 * loops_.tile_rows);
  parallel_for(threads_, columns.parts, [&](std::int64_t task, int index) {
    const std::int64_t first = columns.begin(task);
    const std::int64_t count = columns.size_of_part(task);
    Worker& worker = workers_[static_cast<std::size_t>(index)];
    float* const sums = worker.sums.grow<float>(form.m * count);
    float* const wide =
        worker.columns.grow<float>(2 * loops_.tile_rows * FewRowsProduct<T>::wide_stride(form.k));
    loops.multiply_few_rows({.rows = form.m,
                             .columns = count,
                             .terms = form.k,
                             .chunk_terms = chunks.size,
                             .a = packed,
                             .a_panel_stride = panel_stride,
                             .a_chunk_stride = chunk_stride,
                             .b = product.b + first * form.k,
                             .bias = product.bias == nullptr ? nullptr : bias_.get<float>() + first,
                             .wide = wide,
                             .sums = sums});
    for (std::int64_t row = 0; row < form.m; ++row) {
      const float* const from = sums + row * count;
      const std::int64_t at = row * form.n + first;
      if (product.c_dtype == DType::kF32) {
        std::copy_n(from, count, static_cast<float*>(product.c) + at);
      } else if (product.c_dtype == DType::kBF16) {
        loops_.f32.cast_to_bf16(from, static_cast<BF16*>(product.c) + at, count);
      } else {
        loops_.f32.cast_to_f16(from, static_cast<F16*>(product.c) + at, count);
      }
    }
  });
}

// A slab is as many terms of a block of rows as are packed at once, in whole chunks, which depend
// on the number of terms alone: so do an element's bits. Sums wait for the next one in C, or, where
// that has 16 bits, elsewhere, for some thousand columns at a time.
template <typename T>
void PackedMatmul::run_blocks(const DenseProduct<T>& product, const TypedLoops<T>& loops) {
  const ProductForm& form = product.form;
  const std::int64_t tile = loops_.tile_rows;
  constexpr std::int64_t kPacked = kPackedRows / size_of(DType::kF32);
  const Cut blocks(form.m, std::max(kFewestRows, kPacked / std::max<std::int64_t>(form.k, 1)),
                   tile);
  const std::int64_t chunk = Cut(form.k, kTerms, 1).size;
  const Cut slabs(form.k, std::max<std::int64_t>(1, kPacked / blocks.size / chunk) * chunk, chunk);
  const bool keeps_sums = product.c_dtype != DType::kF32 && slabs.parts > 1;
  const std::int64_t most_sums = kMostSums / size_of(DType::kF32) / blocks.size;
  const Cut columns(form.n, keeps_sums ? std::max(kColumns, most_sums) : form.n,
                    loops_.tile_columns);
  for (std::int64_t c = 0; c < columns.parts; ++c) {
    for (std::int64_t r = 0; r < blocks.parts; ++r) {
      for (std::int64_t k = 0; k < std::max<std::int64_t>(slabs.parts, 1); ++k) {
        Plan<T> plan{.product = product,
                     .tile_rows = tile,
                     .columns = {columns.begin(c), columns.size_of_part(c)},
                     .rows = {blocks.begin(r), blocks.size_of_part(r)},
                     .terms = {slabs.begin(k), form.k == 0 ? 0 : slabs.size_of_part(k)},
                     .chunk_terms = chunk};
        if (product.c_dtype == DType::kF32) {
          plan.sums =
              static_cast<float*>(product.c) + plan.rows.begin * form.n + plan.columns.begin;
          plan.sums_stride = form.n;
        } else if (keeps_sums) {
          plan.sums = sums_.grow<float>(plan.rows.size * plan.columns.size);
          plan.sums_stride = plan.columns.size;
        }
        pack(plan, loops);
        multiply(plan, loops);
      }
    }
  }
}

template <typename T>
void PackedMatmul::pack(const Plan<T>& plan, const TypedLoops<T>& loops) {
  const ProductForm& form = plan.product.form;
  const Cut chunks = plan.chunks();
  float* const packed = rows_.grow<float>(plan.place(chunks.parts, 0));
  const std::int64_t groups = ceil_div(plan.panels(), kRowPanels);
  parallel_for(threads_, groups * chunks.parts, [&](std::int64_t task, int /*worker*/) {
    const std::int64_t chunk = task / groups;
    const std::int64_t first = task % groups * kRowPanels * plan.tile_rows;
    const std::int64_t row = plan.rows.begin + first;
    const std::int64_t term = plan.terms.begin + chunks.begin(chunk);
    const std::int64_t terms = chunks.size_of_part(chunk);
    loops.pack_rows(
        {.from = plan.product.a + (form.a_transposed ? term * form.m + row : row * form.k + term),
         .vectors_together = form.a_transposed,
         .stride = form.a_transposed ? form.m : form.k,
         .vectors = std::min(kRowPanels * plan.tile_rows, plan.rows.size - first),
         .terms = terms,
         .panel_stride = plan.panel_stride(terms, plan.tile_rows)},
        packed + plan.place(chunk, first / plan.tile_rows));
  });
}

// Where there are few columns, several threads take the same ones, and rows of their own.
template <typename T>
void PackedMatmul::multiply(const Plan<T>& plan, const TypedLoops<T>& loops) {
  constexpr std::int64_t kTasksOfAThread = 3;
  const Cut columns(plan.columns.size, kColumns, loops_.tile_columns);
  const std::int64_t shares =
      threads_ == 1 ? 1
                    : std::clamp<std::int64_t>(ceil_div(kTasksOfAThread * threads_, columns.parts),
                                               1, ceil_div(plan.panels(), kRowPanels));
  const Cut rows(plan.rows.size, ceil_div(plan.rows.size, shares), plan.tile_rows);
  parallel_for(threads_, columns.parts * rows.parts, [&](std::int64_t task, int worker) {
    const std::int64_t c = task % columns.parts;
    const std::int64_t r = task / columns.parts;
    multiply(plan, loops, {rows.begin(r), rows.size_of_part(r)},
             {plan.columns.begin + columns.begin(c), columns.size_of_part(c)},
             workers_[static_cast<std::size_t>(worker)]);
  });
}

template <typename T>
void PackedMatmul::multiply(const Plan<T>& plan,
                            const TypedLoops<T>& loops,
                            Range rows,
                            Range columns,
                            Worker& worker) const {
  const ProductForm& form = plan.product.form;
  const Cut chunks = plan.chunks();
  const std::int64_t tile = loops_.tile_columns;
  const std::int64_t passes = std::max<std::int64_t>(chunks.parts, 1);
  const bool rounds = plan.product.c_dtype != DType::kF32 &&
                      plan.terms.begin + plan.terms.size == form.k;  // after the last of them
  float* const b = worker.columns.grow<float>(ceil_div(columns.size, tile) *
                                              plan.panel_stride(chunks.size, tile));
  std::int64_t sums_stride = plan.sums_stride;
  float* sums = nullptr;
  if (plan.sums != nullptr) {
    sums = plan.sums + rows.begin * sums_stride + columns.begin - plan.columns.begin;
  } else if (passes > 1) {
    sums_stride = columns.size;
    sums = worker.sums.grow<float>(rows.size * columns.size);
  }
  const float* start = form.write == Write::kAdd || plan.terms.begin > 0 ? sums : nullptr;
  std::int64_t start_stride = sums_stride;
  if (plan.product.bias != nullptr && plan.terms.begin == 0) {
    start = bias_.get<float>() + columns.begin;
    start_stride = 0;
  }
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    const std::int64_t term = plan.terms.begin + chunks.begin(pass);
    const std::int64_t terms = chunks.parts == 0 ? 0 : chunks.size_of_part(pass);
    const std::int64_t b_stride = plan.panel_stride(terms, tile);
    loops.pack_columns(
        {.from = plan.product.b + (form.b_transposed ? columns.begin * form.k + term
                                                     : term * form.n + columns.begin),
         .vectors_together = !form.b_transposed,
         .stride = form.b_transposed ? form.k : form.n,
         .vectors = columns.size,
         .terms = terms,
         .panel_stride = b_stride},
        b);
    const std::int64_t step = kRowPanels * plan.tile_rows;
    for (std::int64_t row = 0; row < rows.size; row += step) {
      const auto into = [&]<typename C>(const TypedLoops<C>& to, C* c, std::int64_t c_stride) {
        to.multiply_packed(
            {.rows = std::min(step, rows.size - row),
             .columns = columns.size,
             .terms = terms,
             .a = rows_.get<float>() + plan.place(pass, (rows.begin + row) / plan.tile_rows),
             .a_panel_stride = plan.panel_stride(terms, plan.tile_rows),
             .b = b,
             .b_panel_stride = b_stride,
             .start = start == nullptr ? nullptr : start + row * start_stride,
             .start_stride = start_stride,
             .c = c + row * c_stride,
             .c_stride = c_stride});
      };
      if (rounds && pass + 1 == passes) {
        T* const c = static_cast<T*>(plan.product.c);
        into(loops, c + (plan.rows.begin + rows.begin) * form.n + columns.begin, form.n);
      } else {
        into(loops_.f32, sums, sums_stride);
      }
    }
    start = sums;
    start_stride = sums_stride;
  }
}

}  // namespace dstrain
