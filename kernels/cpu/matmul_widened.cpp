#include "kernels/cpu/matmul_widened.h"

#include "kernels/cpu/matmul_cut.h"
#include "kernels/cpu/matmul_dnnl.h"
#include "kernels/cpu/parallel_for.h"

namespace dstrain {
namespace {

constexpr std::int64_t kMostBlock = 1024;  // rows, columns and terms
constexpr std::int64_t kRowsAtATime = 16;  // that a thread converts

template <typename Body>
void for_each_row(int threads, std::int64_t rows, const Body& body) {
  parallel_pieces(threads, rows, kRowsAtATime, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      body(row);
    }
  });
}

/// A block of an operand as it is stored.
template <typename T>
struct StoredBlock {
  const T* data;
  std::int64_t stride;
  std::int64_t rows;
  std::int64_t columns;
};

/// An operand's block in f32, kept while the next product wants the same one.
template <typename T>
struct WidenedBlock {
  float* data;
  const T* source = nullptr;

  void hold(const StoredBlock<T>& stored, const TypedLoops<T>& loops, int threads) {
    if (stored.data == source) {
      return;
    }
    for_each_row(threads, stored.rows, [&](std::int64_t row) {
      loops.cast_to_f32(stored.data + row * stored.stride, data + row * stored.columns,
                        stored.columns);
    });
    source = stored.data;
  }
};

/// One product and its cuts.
template <typename T>
struct Blocks {
  /// A block of C: rows [row, row + m), columns [column, column + n).
  struct Place {
    std::int64_t row, m, column, n;
  };

  Blocks(const NarrowProduct<T>& its_product, GrowingBuffer& scratch)
      : product(its_product),
        rounds(its_product.c_dtype != DType::kF32),
        rows(product.form.m, kMostBlock, 1),
        columns(product.form.n, kMostBlock, 1),
        terms(product.form.k, kMostBlock, 1) {
    const std::int64_t a_size = rows.size * terms.size;
    const std::int64_t b_size = terms.size * columns.size;
    const std::int64_t c_size = rounds ? rows.size * columns.size : 0;
    a.data = scratch.grow<float>(a_size + b_size + c_size);
    b.data = a.data + a_size;
    sums = b.data + b_size;
  }

  [[nodiscard]] Place place(std::int64_t row_block, std::int64_t column_block) const {
    return {rows.begin(row_block), rows.size_of_part(row_block), columns.begin(column_block),
            columns.size_of_part(column_block)};
  }
  [[nodiscard]] StoredBlock<T> stored_a(const Place& at, std::int64_t chunk) const {
    const std::int64_t term = terms.begin(chunk);
    const std::int64_t k = terms.size_of_part(chunk);
    const ProductForm& form = product.form;
    return form.a_transposed ? StoredBlock<T>{product.a + term * form.m + at.row, form.m, k, at.m}
                             : StoredBlock<T>{product.a + at.row * form.k + term, form.k, at.m, k};
  }
  [[nodiscard]] StoredBlock<T> stored_b(const Place& at, std::int64_t chunk) const {
    const std::int64_t term = terms.begin(chunk);
    const std::int64_t k = terms.size_of_part(chunk);
    const ProductForm& form = product.form;
    return form.b_transposed
               ? StoredBlock<T>{product.b + at.column * form.k + term, form.k, at.n, k}
               : StoredBlock<T>{product.b + term * form.n + at.column, form.n, k, at.n};
  }

  NarrowProduct<T> product;
  bool rounds;  ///< C is not f32: its blocks are summed in scratch memory
  Cut rows;
  Cut columns;
  Cut terms;
  WidenedBlock<T> a{};
  WidenedBlock<T> b{};
  float* sums = nullptr;
};

void round_row(const VectorLoops& loops, const float* from, BF16* to, std::int64_t n) {
  loops.f32.cast_to_bf16(from, to, n);
}
void round_row(const VectorLoops& loops, const float* from, F16* to, std::int64_t n) {
  loops.f32.cast_to_f16(from, to, n);
}

}  // namespace

void WidenedMatmul::run(const NarrowProduct<BF16>& product) {
  run_blocks(product, loops_.bf16);
}

void WidenedMatmul::run(const NarrowProduct<F16>& product) {
  run_blocks(product, loops_.f16);
}

template <typename T>
void WidenedMatmul::run_blocks(const NarrowProduct<T>& product, const TypedLoops<T>& loops) {
  Blocks<T> blocks(product, scratch_);
  const ProductForm& form = product.form;
  for (std::int64_t column_block = 0; column_block < blocks.columns.parts; ++column_block) {
    for (std::int64_t row_block = 0; row_block < blocks.rows.parts; ++row_block) {
      const auto at = blocks.place(row_block, column_block);
      const std::int64_t offset = at.row * form.n + at.column;
      float* const c = blocks.rounds ? blocks.sums : static_cast<float*>(product.c) + offset;
      const std::int64_t c_stride = blocks.rounds ? at.n : form.n;
      bool add = form.write == Write::kAdd;
      if (product.bias != nullptr) {  // C starts as rows of it
        for_each_row(threads_, at.m, [&](std::int64_t row) {
          loops.cast_to_f32(product.bias + at.column, c + row * c_stride, at.n);
        });
        add = true;
      }
      for (std::int64_t chunk = 0; chunk < blocks.terms.parts; ++chunk) {
        blocks.a.hold(blocks.stored_a(at, chunk), loops, threads_);
        blocks.b.hold(blocks.stored_b(at, chunk), loops, threads_);
        sgemm({.form = {.m = at.m,
                        .n = at.n,
                        .k = blocks.terms.size_of_part(chunk),
                        .a_transposed = form.a_transposed,
                        .b_transposed = form.b_transposed,
                        .write = add ? Write::kAdd : Write::kOverwrite},
               .a = blocks.a.data,
               .b = blocks.b.data,
               .c = c,
               .c_stride = c_stride},
              threads_);
        add = true;
      }
      if (blocks.rounds) {
        T* const to = static_cast<T*>(product.c) + offset;
        for_each_row(threads_, at.m, [&](std::int64_t row) {
          round_row(loops_, c + row * c_stride, to + row * form.n, at.n);
        });
      }
    }
  }
}

}  // namespace dstrain
