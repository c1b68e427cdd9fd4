#include "kernels/cpu/matmul_blocked.h"

#include <algorithm>
#include <cstddef>

#include <omp.h>

#include "kernels/cpu/matmul_pack.h"

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
// Beyond this, packing costs more than it saves: the matrix is a vocabulary's.
constexpr std::int64_t kMostPackedBytes = 48 << 20;
constexpr std::int64_t kFewestMultiplications = 1 << 21;

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// `total` in the fewest parts of at most `most`, all of one size but the last.
struct Cut {
  Cut(std::int64_t total_size, std::int64_t most, std::int64_t unit) : total(total_size) {
    size = ceil_div(ceil_div(total, ceil_div(total, most)), unit) * unit;
    parts = ceil_div(total, size);
  }
  [[nodiscard]] std::int64_t begin(std::int64_t part) const { return part * size; }
  [[nodiscard]] std::int64_t size_of_part(std::int64_t part) const {
    return std::min(size, total - part * size);
  }
  std::int64_t total;
  std::int64_t size = 0;
  std::int64_t parts = 0;
};

Cut cut_rows(const ProductForm& form, int threads) {
  const std::int64_t row_bytes = form.k * size_of(DType::kBF16);
  const std::int64_t most =
      std::clamp(kMostBlockBytes / row_bytes / kRowUnit * kRowUnit, kRowUnit, kMostBlockRows);
  // As many blocks as threads, or a multiple of it.
  const std::int64_t blocks = ceil_div(form.m, most * threads) * threads;
  return {form.m, ceil_div(form.m, blocks), kRowUnit};
}

std::int64_t pack_groups(const ProductForm& form) {
  return ceil_div(form.n, kPackPanels * kPanelColumns);
}

bool is_direct(const ProductForm& form) {
  return !form.a_transposed && form.k <= kMostDirectTerms;
}

}  // namespace

struct BlockedMatmul::Plan {
  explicit Plan(const Bf16Product& product, int threads)
      : direct(is_direct(product.form)),
        rows(cut_rows(product.form, threads)),
        terms(product.form.k, direct ? kMostDirectTerms : kMostChunkTerms, kPanelRows),
        sums_apart(product.c_dtype == DType::kBF16 && terms.parts > 1),
        columns(product.form.n, product.form.n, kPanelColumns) {
    // Rows of C that lie whole pages apart fall into the same few sets of the caches, which the
    // kernels feel and a final copy does not.
    if (sums_apart || product.form.n * size_of(product.c_dtype) % kPage == 0) {
      sums_apart = true;
      columns = Cut(product.form.n, kMostBlockColumns, kPanelColumns);
    }
  }

  bool direct;  ///< A is used as it lies
  Cut rows;
  Cut terms;
  bool sums_apart;  ///< blocks of C are summed in scratch memory
  Cut columns;
  BF16* packed = nullptr;
  /// [last block of rows][last block of columns][last chunk of k][not the first chunk]
  DnnlMatmuls::Call* calls[2][2][2][2] = {};

  [[nodiscard]] DnnlMatmuls::Call& call(std::int64_t block,
                                        std::int64_t column_block,
                                        std::int64_t chunk) const {
    return *calls[block == rows.parts - 1][column_block == columns.parts - 1]
                 [chunk == terms.parts - 1][chunk > 0];
  }
};

BlockedMatmul::BlockedMatmul(int threads)
    : threads_(threads),
      has_tiles_(dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_amx),
      calls_(1, threads),
      workers_(static_cast<std::size_t>(threads)) {}

bool BlockedMatmul::run(const Bf16Product& product) {
  const ProductForm& form = product.form;
  const bool fits = form.n % kPanelColumns == 0 && form.k % kPanelRows == 0 &&
                    (!form.a_transposed || form.m % kTransposeColumns == 0);
  if (!has_tiles_ || !fits || form.k * form.n * size_of(DType::kBF16) > kMostPackedBytes ||
      form.m * form.n * form.k < kFewestMultiplications) {
    return false;
  }
  Plan plan(product, threads_);
  if (!this->plan(product, plan)) {
    return false;
  }
  const std::int64_t pack_tasks = pack_groups(form) * plan.terms.parts;
  if (threads_ == 1) {
    for (std::int64_t task = 0; task < pack_tasks; ++task) {
      pack(product, plan, task);
    }
    for (std::int64_t block = 0; block < plan.rows.parts; ++block) {
      multiply(product, plan, block, 0);
    }
    return true;
  }
#pragma omp parallel num_threads(threads_)
  {
#pragma omp for schedule(static)
    for (std::int64_t task = 0; task < pack_tasks; ++task) {
      pack(product, plan, task);
    }
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t block = 0; block < plan.rows.parts; ++block) {
      multiply(product, plan, block, omp_get_thread_num());
    }
  }
  return true;
}

/// Everything that may allocate or fail: the calls of oneDNN and the scratch memory.
bool BlockedMatmul::plan(const Bf16Product& product, Plan& plan) {
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
  plan.packed = packed_b_.grow<BF16>(product.form.k * product.form.n);
  for (Worker& worker : workers_) {
    if (!plan.direct) {
      worker.dense_a.grow<BF16>(plan.rows.size * product.form.k);
    }
    if (plan.sums_apart) {
      worker.sums.grow<float>(plan.rows.size * plan.columns.size);
    }
  }
  return true;
}

/// A few panels in one chunk of k.
void BlockedMatmul::pack(const Bf16Product& product, const Plan& plan, std::int64_t task) const {
  const auto& [m, n, k, a_transposed, b_transposed, write] = product.form;
  const std::int64_t groups = pack_groups(product.form);
  const std::int64_t chunk = task / groups;
  const std::int64_t first = plan.terms.begin(chunk);
  const std::int64_t terms = plan.terms.size_of_part(chunk);
  const std::int64_t panel_size = terms * kPanelColumns;
  const std::int64_t begin = task % groups * kPackPanels;
  const std::int64_t end = std::min(begin + kPackPanels, n / kPanelColumns);
  BF16* const out = plan.packed + first * n;
  if (!b_transposed) {
    pack_panels(product.b + first * n + begin * kPanelColumns, n, terms, end - begin,
                out + begin * panel_size, panel_size);
    return;
  }
  for (std::int64_t panel = begin; panel < end; ++panel) {
    pack_transposed_panel(product.b + panel * kPanelColumns * k + first, k, terms,
                          out + panel * panel_size);
  }
}

void BlockedMatmul::multiply(const Bf16Product& product,
                             const Plan& plan,
                             std::int64_t block,
                             int worker) const {
  const auto& [m, n, k, a_transposed, b_transposed, write] = product.form;
  const Worker& own = workers_[static_cast<std::size_t>(worker)];
  const std::int64_t row = plan.rows.begin(block);
  const std::int64_t rows = plan.rows.size_of_part(block);
  const BF16* const a = plan.direct ? product.a + row * k : own.dense_a.get<BF16>();
  const auto make_dense = [&](std::int64_t first, std::int64_t terms) {
    BF16* const out = own.dense_a.get<BF16>() + first * rows;
    if (a_transposed) {
      transpose(product.a + first * m + row, m, terms, rows, out, terms);
      return;
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      std::copy_n(product.a + (row + r) * k + first, terms, out + r * terms);
    }
  };
  for (std::int64_t column_block = 0; column_block < plan.columns.parts; ++column_block) {
    const std::int64_t column = plan.columns.begin(column_block);
    const std::int64_t columns = plan.columns.size_of_part(column_block);
    std::byte* const c =
        static_cast<std::byte*>(product.c) + (row * n + column) * size_of(product.c_dtype);
    const BF16* const bias = product.bias == nullptr ? nullptr : product.bias + column;
    float* const sums = own.sums.get<float>();
    for (std::int64_t chunk = 0; chunk < plan.terms.parts; ++chunk) {
      const std::int64_t first = plan.terms.begin(chunk);
      const std::int64_t terms = plan.terms.size_of_part(chunk);
      if (!plan.direct && column_block == 0) {
        make_dense(first, terms);  // just before its first use: still in the cache
      }
      calls_.run(plan.call(block, column_block, chunk), worker, a + first * rows,
                 plan.packed + first * n + column * terms, plan.sums_apart ? nullptr : bias,
                 plan.sums_apart ? static_cast<void*>(sums) : c);
    }
    if (plan.sums_apart) {
      finish_block(sums, rows, columns, bias, {.c = c, .dtype = product.c_dtype, .stride = n},
                   write);
    }
  }
}

}  // namespace dstrain
