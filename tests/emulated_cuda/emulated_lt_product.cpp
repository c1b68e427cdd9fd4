#include "tests/emulated_cuda/emulated_lt_product.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <mutex>
#include <numbers>
#include <optional>
#include <vector>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "kernels/core/f8.h"
#include "tests/emulated_cuda/emulated_cublas_lt.h"
#include "tests/emulated_cuda/emulated_memory.h"
#include "tests/emulated_cuda/emulated_stream.h"

namespace dstrain::emulated {
namespace {

double read(const void* data, cudaDataType type, std::int64_t i) {
  if (type == CUDA_R_16BF) return static_cast<double>(to_float(static_cast<const BF16*>(data)[i]));
  if (type == CUDA_R_16F) return static_cast<double>(to_float(static_cast<const F16*>(data)[i]));
  if (type == CUDA_R_8F_E4M3)
    return static_cast<double>(to_float(static_cast<const F8E4M3*>(data)[i]));
  if (type == CUDA_R_8F_E5M2)
    return static_cast<double>(to_float(static_cast<const F8E5M2*>(data)[i]));
  return static_cast<double>(static_cast<const float*>(data)[i]);
}

bool is_f8(const Layout& matrix) {
  return matrix.type == CUDA_R_8F_E4M3 || matrix.type == CUDA_R_8F_E5M2;
}

/// As documented for cublasLtMatmul(), "FP8 kernels", on compute capability 9.0.
bool is_legal_in_f8(const Description& how, const Layout& a, const Layout& b, const Layout& d) {
  constexpr std::uint64_t kMultiple = 16;
  const bool one_is_e4m3 = a.type == CUDA_R_8F_E4M3 || b.type == CUDA_R_8F_E4M3;
  const bool multiples = a.rows % kMultiple == 0 && a.columns % kMultiple == 0 &&
                         b.rows % kMultiple == 0 && b.columns % kMultiple == 0;
  return is_f8(a) && is_f8(b) && one_is_e4m3 && multiples && how.transpose_a == CUBLAS_OP_T &&
         how.transpose_b == CUBLAS_OP_N && how.compute == CUBLAS_COMPUTE_32F &&
         (d.type == CUDA_R_16BF || (d.type == CUDA_R_32F && !how.has_bias()));
}

bool has_legal_types(const Description& how, const Layout& a, const Layout& b, const Layout& d) {
  return is_f8(a) || is_f8(b) ? is_legal_in_f8(how, a, b, d) : a.type == b.type;
}

bool is_at_16_bytes(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}

void write(void* data, cudaDataType type, std::int64_t i, float value) {
  if (type == CUDA_R_16BF) {
    static_cast<BF16*>(data)[i] = to_bf16(value);
  } else if (type == CUDA_R_16F) {
    static_cast<F16*>(data)[i] = to_f16(value);
  } else {
    static_cast<float*>(data)[i] = value;
  }
}

/// The part of a product's shape that algorithms depend on.
std::uint64_t fingerprint(const Description& how, const Layout& a, const Layout& b) {
  std::uint64_t print = how.epilogue;
  for (const std::uint64_t part : {std::uint64_t{how.transpose_a}, std::uint64_t{how.transpose_b},
                                   a.rows, a.columns, b.rows, b.columns}) {
    print = print * 1'000'003 + part;
  }
  return print;
}

cublasLtMatmulAlgo_t algorithm_of(std::size_t index, std::uint64_t product) {
  return {{index + 1, cublas_lt().version, product, 0, 0, 0, 0, ~std::uint64_t{0}}};
}

std::size_t workspace_of(std::size_t index) {
  return 4096 * index;
}

/// Its index, or nothing where it is none of this library's for the product.
std::optional<std::size_t> index_of(const cublasLtMatmulAlgo_t& algorithm, std::uint64_t product) {
  for (std::size_t index = 0; index < kAlgorithms; ++index) {
    const cublasLtMatmulAlgo_t own = algorithm_of(index, product);
    if (std::equal(std::begin(own.data), std::end(own.data), std::begin(algorithm.data))) {
      return index;
    }
  }
  return std::nullopt;
}

/// As documented for CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD and _POINTER.
bool has_legal_aux(const Description& how, const Layout& result) {
  constexpr std::uintptr_t kAlignment = 16;
  constexpr std::int64_t kColumns = 8;
  return how.aux != nullptr && reinterpret_cast<std::uintptr_t>(how.aux) % kAlignment == 0 &&
         how.aux_leading % kColumns == 0 &&
         how.aux_leading >= static_cast<std::int64_t>(result.rows);
}

/// Kernels read it in vectors, wherever it begins; of where it does, they are not asked.
bool can_read_bias(const Description& how) {
  constexpr std::uintptr_t kAlignment = 16;
  return !how.has_bias() || reinterpret_cast<std::uintptr_t>(how.bias) % kAlignment == 0;
}

double gelu(double x) {
  return 0.5 * x *
         (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

double gelu_slope(double x) {
  constexpr double kStep = 1e-5;
  return (gelu(x + kStep) - gelu(x - kStep)) / (2.0 * kStep);
}

/// The product as described when the call was made: descriptions and scalars are the host's.
struct Product {
  Description how;
  float alpha;
  float beta;
  const void* a;
  Layout left;
  const void* b;
  Layout right;
  const void* c;
  void* d;
  Layout result;
  [[nodiscard]] std::uint64_t depth() const {
    return how.transpose_a == CUBLAS_OP_T ? left.rows : left.columns;
  }
};

bool fits(const Product& p) {
  const bool a_is_transposed = p.how.transpose_a == CUBLAS_OP_T;
  const bool b_is_transposed = p.how.transpose_b == CUBLAS_OP_T;
  return p.result.rows == (a_is_transposed ? p.left.columns : p.left.rows) &&
         p.result.columns == (b_is_transposed ? p.right.rows : p.right.columns) &&
         p.depth() == (b_is_transposed ? p.right.columns : p.right.rows);
}

/// The steps from Σ a·b (and β·c) to d.
double finish(const Product& p, std::int64_t row, std::int64_t column, double value) {
  const std::int64_t at_aux = row + column * p.how.aux_leading;
  if (p.how.has_bias()) {
    value += read(p.how.bias, p.result.type, row);
  }
  if (p.how.epilogue == CUBLASLT_EPILOGUE_DGELU) {
    value *= gelu_slope(read(p.how.aux, p.result.type, at_aux));
  } else if (p.how.has_activation()) {
    write(p.how.aux, p.result.type, at_aux, static_cast<float>(value));
    value = gelu(value);
  }
  return value;
}

/// `lines` rows of a or columns of b, each of `depth` terms that lie side by side, in memory too
/// where they are `contiguous`.
std::vector<double> widened(const void* data,
                            const Layout& layout,
                            std::int64_t lines,
                            std::int64_t depth,
                            bool contiguous) {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(lines * depth));
  for (std::int64_t line = 0; line < lines; ++line) {
    for (std::int64_t k = 0; k < depth; ++k) {
      values.push_back(read(data, layout.type,
                            contiguous ? k + line * layout.leading : line + k * layout.leading));
    }
  }
  return values;
}

void compute(const Product& p) {
  const bool a_is_transposed = p.how.transpose_a == CUBLAS_OP_T;
  const bool b_is_transposed = p.how.transpose_b == CUBLAS_OP_T;
  const auto scale_of = [](const float* scale) {
    return scale == nullptr ? 1.0 : static_cast<double>(*scale);
  };
  const double scale = scale_of(p.how.a_scale) * scale_of(p.how.b_scale) * p.alpha;
  const auto rows = static_cast<std::int64_t>(p.result.rows);
  const auto columns = static_cast<std::int64_t>(p.result.columns);
  const auto depth = static_cast<std::int64_t>(p.depth());
  const std::vector<double> a = widened(p.a, p.left, rows, depth, a_is_transposed);
  const std::vector<double> b = widened(p.b, p.right, columns, depth, !b_is_transposed);
  for (std::int64_t column = 0; column < columns; ++column) {
    const double* const from_b = b.data() + column * depth;
    for (std::int64_t row = 0; row < rows; ++row) {
      const double* const from_a = a.data() + row * depth;
      double sum = 0.0;
      for (std::int64_t k = 0; k < depth; ++k) {
        sum += from_a[k] * from_b[k];
      }
      const std::int64_t at = row + column * p.result.leading;
      double value = static_cast<double>(static_cast<float>(sum)) * scale;
      if (p.beta != 0.0F) {
        value += p.beta * read(p.c, p.result.type, at);
      }
      write(p.d, p.result.type, at, static_cast<float>(finish(p, row, column, value)));
    }
  }
}

/// Ranks that are threads share the list.
void note_run(std::size_t algorithm, const Description& how) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  (how.has_activation() ? cublas_lt().ran_activated : cublas_lt().ran).push_back(algorithm);
  cublas_lt().is_in_tf32 = how.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
}

}  // namespace

cublasStatus_t multiply(cublasLtHandle_t /*handle*/,
                        cublasLtMatmulDesc_t description,
                        const void* alpha,
                        const void* a,
                        cublasLtMatrixLayout_t a_layout,
                        const void* b,
                        cublasLtMatrixLayout_t b_layout,
                        const void* beta,
                        const void* c,
                        cublasLtMatrixLayout_t /*c_layout*/,
                        void* d,
                        cublasLtMatrixLayout_t d_layout,
                        const cublasLtMatmulAlgo_t* algorithm,
                        void* workspace,
                        std::size_t workspace_bytes,
                        cudaStream_t handle) {
  const Product product{.how = *reinterpret_cast<const Description*>(description),
                        .alpha = *static_cast<const float*>(alpha),
                        .beta = *static_cast<const float*>(beta),
                        .a = a,
                        .left = *reinterpret_cast<const Layout*>(a_layout),
                        .b = b,
                        .right = *reinterpret_cast<const Layout*>(b_layout),
                        .c = c,
                        .d = d,
                        .result = *reinterpret_cast<const Layout*>(d_layout)};
  if (!fits(product)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!has_legal_types(product.how, product.left, product.right, product.result) ||
      (is_f8(product.left) &&
       !(is_at_16_bytes(a) && is_at_16_bytes(b) && is_at_16_bytes(d) &&
         is_at_16_bytes(product.how.a_scale) && is_at_16_bytes(product.how.b_scale)))) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const std::optional<std::size_t> index =
      index_of(*algorithm, fingerprint(product.how, product.left, product.right));
  const bool activates = product.how.has_activation();
  if (!index || workspace_bytes < workspace_of(*index) ||
      (activates && !has_legal_aux(product.how, product.result))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!can_read_bias(product.how)) {
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  if (*index < cublas_lt().refused_when_run) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  note_run(*index, product.how);
  const double microseconds =
      cublas_lt().microseconds[*index] + (activates ? cublas_lt().activation_microseconds : 0.0);
  Stream& stream = stream_of(handle);
  check_argument("cublasLtMatmul", product, stream.device());
  check_argument("cublasLtMatmul", workspace, stream.device());
  stream.enqueue([=] {
    std::memset(workspace, 0xff, workspace_bytes);
    compute(product);
    stream_microseconds() += microseconds;
  });
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t propose(cublasLtHandle_t /*handle*/,
                       cublasLtMatmulDesc_t description,
                       cublasLtMatrixLayout_t a_layout,
                       cublasLtMatrixLayout_t b_layout,
                       cublasLtMatrixLayout_t /*c_layout*/,
                       cublasLtMatrixLayout_t d_layout,
                       cublasLtMatmulPreference_t /*preference*/,
                       int most,
                       cublasLtMatmulHeuristicResult_t results[],
                       int* found) {
  const auto& how = *reinterpret_cast<const Description*>(description);
  const auto& left = *reinterpret_cast<const Layout*>(a_layout);
  const auto& right = *reinterpret_cast<const Layout*>(b_layout);
  const auto& result = *reinterpret_cast<const Layout*>(d_layout);
  *found = 0;
  if (!has_legal_types(how, left, right, result)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (how.has_activation() && (!cublas_lt().has_activations || !has_legal_aux(how, result))) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  for (std::size_t index = 0; index < kAlgorithms && *found < most; ++index, ++*found) {
    results[index] = {.algo = algorithm_of(index, fingerprint(how, left, right)),
                      .workspaceSize = workspace_of(index),
                      .state = CUBLAS_STATUS_SUCCESS,
                      .wavesCount = 1.0F,
                      .reserved = {}};
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_algorithm(cublasLtHandle_t /*handle*/,
                               cublasLtMatmulDesc_t description,
                               cublasLtMatrixLayout_t a_layout,
                               cublasLtMatrixLayout_t b_layout,
                               cublasLtMatrixLayout_t /*c_layout*/,
                               cublasLtMatrixLayout_t /*d_layout*/,
                               const cublasLtMatmulAlgo_t* algorithm,
                               cublasLtMatmulHeuristicResult_t* result) {
  const std::optional<std::size_t> index =
      index_of(*algorithm, fingerprint(*reinterpret_cast<const Description*>(description),
                                       *reinterpret_cast<const Layout*>(a_layout),
                                       *reinterpret_cast<const Layout*>(b_layout)));
  if (!index) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *result = {.algo = {},
             .workspaceSize = workspace_of(*index),
             .state = CUBLAS_STATUS_SUCCESS,
             .wavesCount = 1.0F,
             .reserved = {}};
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace dstrain::emulated
