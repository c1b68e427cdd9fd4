#include "kernels/cpu/matmul_blocked.h"

#include <algorithm>
#include <cstddef>

#include <omp.h>

#include "kernels/core/check.h"
#include "kernels/cpu/matmul_cut.h"
#include "kernels/cpu/matmul_pack.h"
#include "kernels/cpu/parallel_for.h"

namespace dstrain {
namespace {

// Measured on a Sapphire-Rapids-class Xeon with 2 MiB of second-level cache a core.
constexpr std::int64_t kMostBlockRows = 256;
constexpr std::int64_t kMostBlockBytes = 2 << 20;  // of A
constexpr std::int64_t kMostBlockColumns = 384;    // where sums are kept apart
constexpr std::int64_t kMostDirectTerms = 1024;    // of k, where A is used as it lies
constexpr std::int64_t kMostChunkTerms = 512;      // of k, where it is copied
constexpr std::int64_t kRowUnit = 32;              // two tiles
constexpr std::int64_t kPackPanels = 4;            // that a thread packs at a time
constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kMostPackedBytes = 16 << 20;  // of B at once, by all threads
constexpr std::int64_t kMostSlabBytes = 2 << 20;     // of B at once, by a thread for itself
// Less than this is one small call of oneDNN, whose own copies then cost least.
constexpr std::int64_t kFewestMultiplications = 1 << 21;
constexpr std::int64_t kFewestRows = 16;

Cut cut_rows(const ProductForm& form, int threads) {
  const std::int64_t row_bytes = form.k * size_of(DType::kBF16);
  const std::int64_t most =
      std::clamp(kMostBlockBytes / row_bytes / kRowUnit * kRowUnit, kRowUnit, kMostBlockRows);
  // Use as many blocks as threads, or a multiple of that.
  const std::int64_t blocks = ceil_div(form.m, most * threads) * threads;
  return {form.m, ceil_div(form.m, blocks), kRowUnit};
}

/// oneDNN's names of instruction sets are sets of bits.
bool dnnl_has_tiles() {
  constexpr auto kTiles = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_amx);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kTiles) == kTiles;
}

std::int64_t panels_of(const ProductForm& form) {
  return ceil_div(form.n, kPanelColumns);
}

std::int64_t pack_groups(const ProductForm& form) {
  return ceil_div(panels_of(form), kPackPanels);
}

}  // namespace

/// A product, or a slab of one, and how it is cut. Terms are counted up to a multiple of 32 and
/// columns to one of 64: packing fills up with zeros.
struct BlockedMatmul::Plan {
  Plan(const Bf16Product& its_product, const Strides& its_strides, int threads)
      : product(its_product),
        strides(its_strides),
        direct(!product.form.a_transposed && strides.a == product.form.k &&
               product.form.k % kPanelRows == 0 && product.form.k <= kMostDirectTerms),
        rows(cut_rows(product.form, threads)),
        terms(round_up(product.form.k, kPanelRows),
              direct ? kMostDirectTerms : kMostChunkTerms,
              kPanelRows),
        columns(round_up(product.form.n, kPanelColumns),
                product.form.n + kPanelColumns,
                kPanelColumns) {
    const std::int64_t n = product.form.n;
    // Rows of C that lie whole pages apart fall into the same few sets of the caches, which the
    // kernels feel and a final copy does not.
    sums_apart = (product.c_dtype == DType::kBF16 && terms.parts > 1) || n % kPanelColumns != 0 ||
                 strides.c != n || strides.c * size_of(product.c_dtype) % kPage == 0;
    if (sums_apart) {
      columns = Cut(columns.total, kMostBlockColumns, kPanelColumns);
    }
  }
  [[nodiscard]] DnnlMatmuls::Call& call(std::int64_t block,
                                        std::int64_t column_block,
                                        std::int64_t chunk) const {
    return *calls[block == rows.parts - 1][column_block == columns.parts - 1]
                 [chunk == terms.parts - 1][chunk > 0];
  }

  [[nodiscard]] std::int64_t packed_elements() const { return terms.total * columns.total; }
  [[nodiscard]] std::int64_t pack_tasks() const { return pack_groups(product.form) * terms.parts; }

  Bf16Product product;
  Strides strides;
  bool direct;  ///< A is used as it lies
  Cut rows;
  Cut terms;
  Cut columns;
  bool sums_apart;  ///< blocks of C are summed in scratch memory
  BF16* packed = nullptr;
  /// [last block of rows][last block of columns][last chunk of k][not the first chunk]
  DnnlMatmuls::Call* calls[2][2][2][2] = {};
};

BlockedMatmul::BlockedMatmul(int threads)
    : threads_(threads),
      has_tiles_(dnnl_has_tiles()),
      calls_(1, threads),
      workers_(static_cast<std::size_t>(threads)) {}

bool BlockedMatmul::run(const Bf16Product& product) {
  const auto& [m, n, k, a_transposed, b_transposed, write] = product.form;
  if (!has_tiles_ || m < kFewestRows || n < kPanelColumns || k < kPanelRows ||
      m * n * k < kFewestMultiplications) {
    return false;
  }
  const Strides strides{.a = a_transposed ? m : k, .b = b_transposed ? k : n, .c = n};
  if (n * k * size_of(DType::kBF16) <= kMostPackedBytes) {
    return run_slab(product, strides);
  }
  return n >= k ? run_slabs_of_columns(product, strides) : run_slabs_of_terms(product, strides);
}

// A thread packs a slab for itself and multiplies all rows by it, so that no thread waits for
// another.
bool BlockedMatmul::run_slabs_of_columns(const Bf16Product& product, const Strides& strides) {
  const Cut columns(
      product.form.n,
      std::max(kMostSlabBytes / size_of(DType::kBF16) / product.form.k, kPanelColumns),
      kPanelColumns);
  const auto slab_of = [&](std::int64_t slab) {
    const std::int64_t first = columns.begin(slab);
    Bf16Product part = product;
    part.form.n = columns.size_of_part(slab);
    part.b += product.form.b_transposed ? first * strides.b : first;
    part.bias = product.bias == nullptr ? nullptr : product.bias + first;
    part.c = static_cast<std::byte*>(product.c) + first * size_of(product.c_dtype);
    return part;
  };
  Plan whole(slab_of(0), strides, 1);
  Plan last(slab_of(columns.parts - 1), strides, 1);
  if (!prepare(whole) || !prepare(last)) {
    return false;
  }
  for (Worker& worker : workers_) {
    worker.packed_b.grow<BF16>(whole.packed_elements());
  }
  parallel_for(threads_, columns.parts, [&](std::int64_t slab, int worker) {
    Plan plan = slab == columns.parts - 1 ? last : whole;
    plan.product = slab_of(slab);
    plan.packed = workers_[static_cast<std::size_t>(worker)].packed_b.get<BF16>();
    for (std::int64_t task = 0; task < plan.pack_tasks(); ++task) {
      pack(plan, task);
    }
    for (std::int64_t block = 0; block < plan.rows.parts; ++block) {
      multiply(plan, block, worker);
    }
  });
  return true;
}

bool BlockedMatmul::run_slabs_of_terms(const Bf16Product& product, const Strides& strides) {
  const auto& [m, n, k, a_transposed, b_transposed, write] = product.form;
  const Cut terms(k, std::max(kMostPackedBytes / size_of(DType::kBF16) / n, kPanelRows),
                  kPanelRows);
  const bool narrow = product.c_dtype == DType::kBF16;
  Bf16Product part = product;
  if (narrow) {
    part.c = slab_sums_.grow<float>(m * n);
    part.c_dtype = DType::kF32;
  }
  for (std::int64_t slab = 0; slab < terms.parts; ++slab) {
    const std::int64_t first = terms.begin(slab);
    part.form.k = terms.size_of_part(slab);
    part.a = product.a + (a_transposed ? first * strides.a : first);
    part.b = product.b + (b_transposed ? first : first * strides.b);
    if (!run_slab(part, strides)) {
      check(slab == 0, "oneDNN multiplies {} of {} terms only", first, k);
      return false;
    }
    part.form.write = Write::kAdd;
    part.bias = nullptr;
  }
  if (narrow) {
    constexpr std::int64_t kRowsAtATime = 32;
    parallel_pieces(threads_, m, kRowsAtATime, [&](std::int64_t begin, std::int64_t end) {
      finish_block(
          slab_sums_.get<float>() + begin * n, n, end - begin, n, nullptr,
          {.c = static_cast<BF16*>(product.c) + begin * n, .dtype = DType::kBF16, .stride = n},
          Write::kOverwrite);
    });
  }
  return true;
}

bool BlockedMatmul::run_slab(const Bf16Product& product, const Strides& strides) {
  Plan plan(product, strides, threads_);
  if (!prepare(plan)) {
    return false;
  }
  plan.packed = packed_b_.grow<BF16>(plan.packed_elements());
  const std::int64_t pack_tasks = plan.pack_tasks();
  if (threads_ == 1) {
    for (std::int64_t task = 0; task < pack_tasks; ++task) {
      pack(plan, task);
    }
    for (std::int64_t block = 0; block < plan.rows.parts; ++block) {
      multiply(plan, block, 0);
    }
    return true;
  }
#pragma omp parallel num_threads(threads_)
  {
#pragma omp for schedule(static)
    for (std::int64_t task = 0; task < pack_tasks; ++task) {
      pack(plan, task);
    }
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t block = 0; block < plan.rows.parts; ++block) {
      multiply(plan, block, omp_get_thread_num());
    }
  }
  return true;
}

/// Does everything that may allocate or fail: the calls of oneDNN and the scratch memory.
bool BlockedMatmul::prepare(Plan& plan) {
  const Bf16Product& product = plan.product;
  for (const std::int64_t block : {std::int64_t{0}, plan.rows.parts - 1}) {
    for (const std::int64_t column_block : {std::int64_t{0}, plan.columns.parts - 1}) {
      for (std::int64_t chunk = 0; chunk < plan.terms.parts; ++chunk) {
        const bool first = chunk == 0;
        DnnlMatmuls::Call* const call =
            calls_.find({.m = plan.rows.size_of_part(block),
                         .n = plan.columns.size_of_part(column_block),
                         .k = plan.terms.size_of_part(chunk),
                         .b = MatmulLayout::kPacked,
                         .bias = first && !plan.sums_apart && product.bias != nullptr,
                         .add = !first || (!plan.sums_apart && product.form.write == Write::kAdd),
                         .c_dtype = plan.sums_apart ? DType::kF32 : product.c_dtype});
        if (call == nullptr) {
          return false;
        }
        plan.calls[block == plan.rows.parts - 1][column_block == plan.columns.parts - 1]
                  [chunk == plan.terms.parts - 1][!first] = call;
      }
    }
  }
  for (Worker& worker : workers_) {
    if (!plan.direct) {
      worker.dense_a.grow<BF16>(plan.rows.size * plan.terms.total);
    }
    if (plan.sums_apart) {
      worker.sums.grow<float>(plan.rows.size * plan.columns.size);
    }
  }
  return true;
}

/// Packs a few panels in one chunk of k.
void BlockedMatmul::pack(const Plan& plan, std::int64_t task) const {
  const ProductForm& form = plan.product.form;
  const std::int64_t groups = pack_groups(form);
  const std::int64_t chunk = task / groups;
  const std::int64_t first = plan.terms.begin(chunk);
  const std::int64_t terms = plan.terms.size_of_part(chunk);
  const std::int64_t column = task % groups * kPackPanels * kPanelColumns;
  const std::int64_t offset =
      form.b_transposed ? column * plan.strides.b + first : first * plan.strides.b + column;
  pack_panels({.b = plan.product.b + offset,
               .stride = plan.strides.b,
               .transposed = form.b_transposed,
               .rows = std::min(terms, form.k - first),
               .columns = std::min(kPackPanels * kPanelColumns, form.n - column)},
              plan.packed + first * plan.columns.total + column * terms, terms * kPanelColumns);
}

/// Copies A[the rows, a chunk of terms] to dense rows, filled up with zeros.
void BlockedMatmul::make_dense(
    const Plan& plan, std::int64_t row, std::int64_t rows, std::int64_t chunk, BF16* out) {
  const std::int64_t first = plan.terms.begin(chunk);
  const std::int64_t terms = plan.terms.size_of_part(chunk);
  const std::int64_t there = std::min(terms, plan.product.form.k - first);
  if (plan.product.form.a_transposed) {
    transpose(plan.product.a + first * plan.strides.a + row, plan.strides.a, there, rows, out,
              terms);
    return;
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    BF16* const end =
        std::copy_n(plan.product.a + (row + r) * plan.strides.a + first, there, out + r * terms);
    std::fill_n(end, terms - there, BF16{});
  }
}

void BlockedMatmul::multiply(const Plan& plan, std::int64_t block, int worker) const {
  const Bf16Product& product = plan.product;
  const Worker& own = workers_[static_cast<std::size_t>(worker)];
  const std::int64_t row = plan.rows.begin(block);
  const std::int64_t rows = plan.rows.size_of_part(block);
  BF16* const dense = own.dense_a.get<BF16>();
  float* const sums = own.sums.get<float>();
  for (std::int64_t column_block = 0; column_block < plan.columns.parts; ++column_block) {
    const std::int64_t column = plan.columns.begin(column_block);
    const std::int64_t columns = plan.columns.size_of_part(column_block);
    void* const c = static_cast<std::byte*>(product.c) +
                    (row * plan.strides.c + column) * size_of(product.c_dtype);
    const BF16* const bias = product.bias == nullptr ? nullptr : product.bias + column;
    for (std::int64_t chunk = 0; chunk < plan.terms.parts; ++chunk) {
      const std::int64_t first = plan.terms.begin(chunk);
      if (!plan.direct && column_block == 0) {  // just before its first use: still in the cache
        make_dense(plan, row, rows, chunk, dense + first * rows);
      }
      calls_.run(plan.call(block, column_block, chunk), worker,
                 plan.direct ? product.a + row * plan.strides.a : dense + first * rows,
                 plan.packed + first * plan.columns.total + column * plan.terms.size_of_part(chunk),
                 plan.sums_apart || chunk > 0 ? nullptr : bias,
                 plan.sums_apart ? static_cast<void*>(sums) : c);
    }
    if (plan.sums_apart) {
      finish_block(sums, columns, rows, std::min(columns, product.form.n - column), bias,
                   {.c = c, .dtype = product.c_dtype, .stride = plan.strides.c},
                   product.form.write);
    }
  }
}

}  // namespace dstrain
