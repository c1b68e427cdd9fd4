// f32 goes to oneDNN's sgemm (matmul_sgemm.h), which with AVX-512 holds its rate at every shape of
// a transformer, also where its matmul primitive falls to half (rows of 3072 floats, whole pages).
// bf16 goes in
// blocks where that pays (matmul_blocked.h), else in one call of the matmul primitive. What is
// left, f16, and f32 and bf16 before AVX-512, goes to kernels of our own (matmul_packed.h).
//
// N tokens, I inputs, O outputs
#include "kernels/cpu/matmul.h"

#include <cstring>

#include "kernels/core/check.h"
#include "kernels/cpu/matmul_blocked.h"
#include "kernels/cpu/matmul_dnnl.h"
#include "kernels/cpu/matmul_packed.h"
#include "kernels/cpu/matmul_product.h"
#include "kernels/cpu/matmul_sgemm.h"

namespace dstrain {
namespace {

template <typename T>
DenseProduct<T> dense_product(const ProductForm& form, const MatrixProduct& product) {
  return {.form = form,
          .a = pointer<T>(product.a),
          .b = pointer<T>(product.b),
          .bias = pointer<T>(product.bias),
          .c = product.c.data(),
          .c_dtype = product.c.dtype()};
}

}  // namespace

struct CpuMatmul::Impl {
  Impl(int num_threads, const VectorLoops& loops)
      : sgemm(num_threads, loops),
        blocked(num_threads),
        whole(num_threads, 1),
        packed(num_threads, loops) {}

  bool product_whole(const Bf16Product& product);

  SgemmMatmul sgemm;
  BlockedMatmul blocked;
  DnnlMatmuls whole;
  PackedMatmul packed;
};

CpuMatmul::CpuMatmul(int threads, const VectorLoops& loops)
    : impl_(std::make_unique<Impl>(threads, loops)) {
  check(threads >= 1, "matrix products with {} threads", threads);
}
CpuMatmul::~CpuMatmul() = default;

void CpuMatmul::run(const MatrixProduct& wanted) {
  const ProductForm form = form_of(wanted);
  if (form.m == 0 || form.n == 0) {
    return;
  }
  if (form.k == 0 && wanted.bias.empty()) {
    if (form.write == Write::kOverwrite) {
      std::memset(wanted.c.data(), 0, static_cast<std::size_t>(wanted.c.bytes()));
    }
    return;
  }
  if (wanted.a.dtype() == DType::kF32) {
    const auto product = dense_product<float>(form, wanted);
    // Our own kernels multiply a few rows fastest by a transposed B, which generation does.
    const bool suits_packed = form.b_transposed && form.m >= SgemmMatmul::kFewestTransposedRows &&
                              form.m <= FewRowsProduct<float>::kMostRows;
    SgemmMatmul::suits_any_threads() && !suits_packed ? impl_->sgemm.run(product)
                                                      : impl_->packed.run(product);
    return;
  }
  if (wanted.a.dtype() == DType::kF16) {
    impl_->packed.run(dense_product<F16>(form, wanted));
    return;
  }
  const auto product = dense_product<BF16>(form, wanted);
  if (form.k == 0 || !(impl_->blocked.run(product) || impl_->product_whole(product))) {
    impl_->packed.run(product);
  }
}

bool CpuMatmul::Impl::product_whole(const Bf16Product& product) {
  const auto& [m, n, k, a_transposed, b_transposed, write] = product.form;
  DnnlMatmuls::Call* const call =
      whole.find({.m = m,
                  .n = n,
                  .k = k,
                  .a = a_transposed ? MatmulLayout::kTransposed : MatmulLayout::kRows,
                  .b = b_transposed ? MatmulLayout::kTransposed : MatmulLayout::kRows,
                  .bias = product.bias != nullptr,
                  .add = write == Write::kAdd,
                  .c_dtype = product.c_dtype});
  if (call == nullptr) {
    return false;
  }
  whole.run(*call, 0, product.a, product.b, product.bias, product.c);
  return true;
}

}  // namespace dstrain
