// f32 goes to oneDNN's sgemm, which holds its rate at every shape of a transformer, also where
// its matmul primitive falls to half (rows of 3072 floats, whole pages). bf16 goes in blocks where
// that pays (matmul_blocked.h), else in one call of the matmul primitive, and where this
// processor has no bf16 kernel (before AVX-512), through f32 copies to sgemm.
//
// N tokens, I inputs, O outputs
#include "kernels/cpu/matmul.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include <oneapi/dnnl/dnnl.hpp>

#include "kernels/core/check.h"
#include "kernels/cpu/matmul_blocked.h"
#include "kernels/cpu/matmul_dnnl.h"
#include "kernels/cpu/matmul_memory.h"
#include "kernels/cpu/matmul_product.h"
#include "kernels/cpu/parallel_for.h"

namespace dstrain {
namespace {

constexpr std::int64_t kPiece = 16384;  // elements a thread takes at a time

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
  check(left.dtype() == right.dtype() &&
            (left.dtype() == DType::kF32 || left.dtype() == DType::kBF16),
        "a matrix product of {} and {}, expected both f32 or both bf16", name_of(left.dtype()),
        name_of(right.dtype()));
}

}  // namespace

struct CpuMatmul::Impl {
  explicit Impl(int num_threads)
      : threads(num_threads), blocked(num_threads), whole(num_threads, 1) {}

  void product(const ProductForm& form, ConstTensor a, ConstTensor b, ConstTensor bias, Tensor c);
  void product_f32(
      const ProductForm& form, const float* a, const float* b, const float* bias, float* c) const;
  bool product_whole(const Bf16Product& product);
  void product_bf16_in_f32(const Bf16Product& product);

  int threads;
  BlockedMatmul blocked;
  DnnlMatmuls whole;
  GrowingBuffer f32_scratch;
};

CpuMatmul::CpuMatmul(int threads) : impl_(std::make_unique<Impl>(threads)) {
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
  const Bf16Product product{.form = form,
                            .a = static_cast<const BF16*>(a.data()),
                            .b = static_cast<const BF16*>(b.data()),
                            .bias = static_cast<const BF16*>(bias.data()),
                            .c = c.data(),
                            .c_dtype = c.dtype()};
  if (form.k == 0 || !(blocked.run(product) || product_whole(product))) {
    product_bf16_in_f32(product);
  }
}

// With a bias, C starts as rows of it and the product is added.
void CpuMatmul::Impl::product_f32(
    const ProductForm& form, const float* a, const float* b, const float* bias, float* c) const {
  bool add = form.write == Write::kAdd;
  if (bias != nullptr) {
    parallel_for(threads, form.m, [&](std::int64_t row, int /*worker*/) {
      std::copy_n(bias, form.n, c + row * form.n);
    });
    add = true;
  }
  if (form.k == 0) {
    return;
  }
  const OpenMpTeam team(threads);
  const dnnl_status_t status =
      dnnl_sgemm(form.a_transposed ? 'T' : 'N', form.b_transposed ? 'T' : 'N', form.m, form.n,
                 form.k, 1.0F, a, form.a_transposed ? form.m : form.k, b,
                 form.b_transposed ? form.k : form.n, add ? 1.0F : 0.0F, c, form.n);
  check(status == dnnl_success, "dnnl_sgemm of {} x {} x {} failed with status {}", form.m, form.n,
        form.k, static_cast<int>(status));
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

void CpuMatmul::Impl::product_bf16_in_f32(const Bf16Product& product) {
  const ProductForm& form = product.form;
  const std::int64_t a_size = form.m * form.k;
  const std::int64_t b_size = form.k * form.n;
  const std::int64_t c_size = form.m * form.n;
  const bool narrow = product.c_dtype == DType::kBF16;
  float* const a = f32_scratch.grow<float>(a_size + b_size + form.n + (narrow ? c_size : 0));
  float* const b = a + a_size;
  float* const bias = b + b_size;
  float* const c = narrow ? bias + form.n : static_cast<float*>(product.c);
  const auto widen = [&](const BF16* from, std::int64_t n, float* to) {
    parallel_pieces(threads, n, kPiece, [&](std::int64_t begin, std::int64_t end) {
      std::transform(from + begin, from + end, to + begin,
                     [](BF16 value) { return to_float(value); });
    });
  };
  widen(product.a, a_size, a);
  widen(product.b, b_size, b);
  if (product.bias != nullptr) {
    widen(product.bias, form.n, bias);
  }
  product_f32(form, a, b, product.bias == nullptr ? nullptr : bias, c);
  if (narrow) {
    BF16* const to = static_cast<BF16*>(product.c);
    parallel_pieces(threads, c_size, kPiece, [&](std::int64_t begin, std::int64_t end) {
      std::transform(c + begin, c + end, to + begin, [](float value) { return to_bf16(value); });
    });
  }
}

}  // namespace dstrain
