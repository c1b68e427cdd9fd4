// f32 goes to oneDNN's sgemm, which holds its rate at every shape of a transformer, also where
// its matmul primitive falls to half (rows of 3072 floats, whole pages). bf16 goes in blocks where
// that pays (matmul_blocked.h), else in one call of the matmul primitive. f16, and bf16 where this
// processor has no kernel for it (before AVX-512), are widened block by block (matmul_widened.h).
//
// N tokens, I inputs, O outputs
#include "kernels/cpu/matmul.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "kernels/core/check.h"
#include "kernels/cpu/matmul_blocked.h"
#include "kernels/cpu/matmul_dnnl.h"
#include "kernels/cpu/matmul_product.h"
#include "kernels/cpu/matmul_widened.h"
#include "kernels/cpu/parallel_for.h"

namespace dstrain {
namespace {

void expect_matrix(ConstTensor tensor,
                   std::string_view name,
                   std::int64_t rows,
                   std::int64_t columns) {
  check(tensor.shape() == Shape{rows, columns}, "{} is {}, expected [{}, {}]", name,
        tensor.shape().to_string(), rows, columns);
}

void expect_operands(ConstTensor left, ConstTensor right) {
  check(left.shape().rank() == 2 && right.shape().rank() == 2,
        "a matrix product of tensors of shapes {} and {}", left.shape().to_string(),
        right.shape().to_string());
  const DType dtype = left.dtype();
  check(dtype == right.dtype() &&
            (dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16),
        "a matrix product of {} and {}, expected both f32, both bf16 or both f16", name_of(dtype),
        name_of(right.dtype()));
}

template <typename T>
NarrowProduct<T> narrow_product(
    const ProductForm& form, ConstTensor a, ConstTensor b, ConstTensor bias, Tensor c) {
  return {.form = form,
          .a = static_cast<const T*>(a.data()),
          .b = static_cast<const T*>(b.data()),
          .bias = static_cast<const T*>(bias.data()),
          .c = c.data(),
          .c_dtype = c.dtype()};
}

}  // namespace

struct CpuMatmul::Impl {
  Impl(int num_threads, const VectorLoops& loops)
      : threads(num_threads),
        blocked(num_threads),
        whole(num_threads, 1),
        widened(num_threads, loops) {}

  void product(const ProductForm& form, ConstTensor a, ConstTensor b, ConstTensor bias, Tensor c);
  void product_f32(
      const ProductForm& form, const float* a, const float* b, const float* bias, float* c) const;
  bool product_whole(const Bf16Product& product);

  int threads;
  BlockedMatmul blocked;
  DnnlMatmuls whole;
  WidenedMatmul widened;
};

CpuMatmul::CpuMatmul(int threads, const VectorLoops& loops)
    : impl_(std::make_unique<Impl>(threads, loops)) {
  check(threads >= 1, "matrix products with {} threads", threads);
}
CpuMatmul::~CpuMatmul() = default;

void CpuMatmul::forward(ConstTensor x_NI, ConstTensor w_OI, ConstTensor bias_O, Tensor y_NO) {
  expect_operands(x_NI, w_OI);
  const std::int64_t n = x_NI.dim(0);
  const std::int64_t i = x_NI.dim(1);
  const std::int64_t o = w_OI.dim(0);
  expect_matrix(w_OI, "the weight", o, i);
  expect_matrix(y_NO, "the output", n, o);
  check(bias_O.empty() || (bias_O.shape() == Shape{o} && bias_O.dtype() == x_NI.dtype()),
        "the bias is {} of {}, expected [{}] of {}", bias_O.shape().to_string(),
        name_of(bias_O.dtype()), o, name_of(x_NI.dtype()));
  impl_->product({.m = n, .n = o, .k = i, .b_transposed = true}, x_NI, w_OI, bias_O, y_NO);
}

void CpuMatmul::product(
    ConstTensor a_MK, ConstTensor b_NK, ConstTensor bias_N, Tensor c_MN, Write write) {
  expect_operands(a_MK, b_NK);
  const std::int64_t m = a_MK.dim(0);
  const std::int64_t k = a_MK.dim(1);
  const std::int64_t n = b_NK.dim(0);
  expect_matrix(b_NK, "the second factor", n, k);
  expect_matrix(c_MN, "the product", m, n);
  check(write == Write::kOverwrite || (c_MN.dtype() == DType::kF32 && bias_N.empty()),
        "a product is added to {}, expected f32 and no bias", name_of(c_MN.dtype()));
  impl_->product({.m = m, .n = n, .k = k, .b_transposed = true, .write = write}, a_MK, b_NK, bias_N,
                 c_MN);
}

void CpuMatmul::backward_input(ConstTensor dy_NO, ConstTensor w_OI, Tensor dx_NI) {
  expect_operands(dy_NO, w_OI);
  const std::int64_t n = dy_NO.dim(0);
  const std::int64_t o = dy_NO.dim(1);
  const std::int64_t i = w_OI.dim(1);
  expect_matrix(w_OI, "the weight", o, i);
  expect_matrix(dx_NI, "the input's gradient", n, i);
  impl_->product({.m = n, .n = i, .k = o}, dy_NO, w_OI, {}, dx_NI);
}

void CpuMatmul::backward_weight(ConstTensor dy_NO, ConstTensor x_NI, Tensor dw_OI, Write write) {
  expect_operands(dy_NO, x_NI);
  const std::int64_t n = dy_NO.dim(0);
  const std::int64_t o = dy_NO.dim(1);
  const std::int64_t i = x_NI.dim(1);
  expect_matrix(x_NI, "the input", n, i);
  expect_matrix(dw_OI, "the weight's gradient", o, i);
  check(dw_OI.dtype() == DType::kF32, "the weight's gradient is {}, expected f32",
        name_of(dw_OI.dtype()));
  impl_->product({.m = o, .n = i, .k = n, .a_transposed = true, .write = write}, dy_NO, x_NI, {},
                 dw_OI);
}

void CpuMatmul::Impl::product(
    const ProductForm& form, ConstTensor a, ConstTensor b, ConstTensor bias, Tensor c) {
  check(c.dtype() == DType::kF32 || c.dtype() == a.dtype(), "a product of {} matrices into {}",
        name_of(a.dtype()), name_of(c.dtype()));
  if (form.m == 0 || form.n == 0) {
    return;
  }
  if (form.k == 0 && bias.empty()) {
    if (form.write == Write::kOverwrite) {
      std::memset(c.data(), 0, static_cast<std::size_t>(c.bytes()));
    }
    return;
  }
  if (a.dtype() == DType::kF32) {
    product_f32(form, static_cast<const float*>(a.data()), static_cast<const float*>(b.data()),
                static_cast<const float*>(bias.data()), static_cast<float*>(c.data()));
    return;
  }
  if (a.dtype() == DType::kF16) {
    widened.run(narrow_product<F16>(form, a, b, bias, c));
    return;
  }
  const auto product = narrow_product<BF16>(form, a, b, bias, c);
  if (form.k == 0 || !(blocked.run(product) || product_whole(product))) {
    widened.run(product);
  }
}

// With a bias, C starts as rows of it and the product is added.
void CpuMatmul::Impl::product_f32(
    const ProductForm& form, const float* a, const float* b, const float* bias, float* c) const {
  F32Product product{.form = form, .a = a, .b = b, .c = c, .c_stride = form.n};
  if (bias != nullptr) {
    parallel_for(threads, form.m, [&](std::int64_t row, int /*worker*/) {
      std::copy_n(bias, form.n, c + row * form.n);
    });
    product.form.write = Write::kAdd;
  }
  sgemm(product, threads);
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
