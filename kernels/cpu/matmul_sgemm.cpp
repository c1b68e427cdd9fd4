#include "kernels/cpu/matmul_sgemm.h"

#include <algorithm>

#include <oneapi/dnnl/dnnl.hpp>

#include "kernels/cpu/matmul_cut.h"
#include "kernels/cpu/parallel_for.h"

namespace dstrain {
namespace {

constexpr std::int64_t kTransposedBytes = 8 << 20;  // at a time: they stay in the last cache
constexpr std::int64_t kColumnsOfTask = 64;

/// Where the factors and the product lie: elements from one row to the next.
struct Strides {
  std::int64_t a;
  std::int64_t b;
  std::int64_t c;
};

void call_sgemm(const DenseProduct<float>& product, const Strides& strides, bool adds) {
  const auto& [m, n, k, a_transposed, b_transposed, write] = product.form;
  const dnnl_status_t status = dnnl_sgemm(
      a_transposed ? 'T' : 'N', b_transposed ? 'T' : 'N', m, n, k, 1.0F, product.a, strides.a,
      product.b, strides.b, adds ? 1.0F : 0.0F, static_cast<float*>(product.c), strides.c);
  check(status == dnnl_success, "dnnl_sgemm of {} x {} x {} failed with status {}", m, n, k,
        static_cast<int>(status));
}

}  // namespace

bool SgemmMatmul::suits_any_threads() {
  constexpr auto kAvx512 = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
  static const bool suits =
      (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kAvx512) == kAvx512;
  return suits;
}

SgemmMatmul::SgemmMatmul(int threads, const VectorLoops& loops)
    : threads_(threads), loops_(loops) {}

// With a bias, C starts as rows of it and the product is added.
void SgemmMatmul::run(const DenseProduct<float>& product) {
  const auto& [m, n, k, a_transposed, b_transposed, write] = product.form;
  auto* const c = static_cast<float*>(product.c);
  if (product.bias != nullptr) {
    parallel_for(threads_, m, [&, columns = n](std::int64_t row, int /*worker*/) {
      std::copy_n(product.bias, columns, c + row * columns);
    });
  }
  if (k == 0) {
    return;
  }
  const bool adds = write == Write::kAdd || product.bias != nullptr;
  if (b_transposed && m >= kFewestTransposedRows) {
    run_transposed(product, adds);
    return;
  }
  const OpenMpTeam team(threads_);
  call_sgemm(product, {a_transposed ? m : k, b_transposed ? k : n, n}, adds);
}

void SgemmMatmul::run_transposed(const DenseProduct<float>& product, bool adds) {
  const auto& [m, n, k, a_transposed, b_transposed, write] = product.form;
  const std::int64_t most = kTransposedBytes / size_of(DType::kF32) / k;
  const Cut parts(n, std::max(most, kColumnsOfTask), kColumnsOfTask);
  for (std::int64_t part = 0; part < parts.parts; ++part) {
    const std::int64_t first = parts.begin(part);
    const std::int64_t columns = parts.size_of_part(part);
    float* const b = transposed_.grow<float>(k * columns);
    parallel_pieces(threads_, columns, kColumnsOfTask, [&](std::int64_t begin, std::int64_t end) {
      loops_.transpose(product.b + (first + begin) * k, end - begin, k, b + begin, columns);
    });
    DenseProduct<float> plain = product;
    plain.form.n = columns;
    plain.form.b_transposed = false;
    plain.b = b;
    plain.c = static_cast<float*>(product.c) + first;
    const OpenMpTeam team(threads_);
    call_sgemm(plain, {a_transposed ? m : k, columns, n}, adds);
  }
}

}  // namespace dstrain
