// cuBLASLt of the emulated GPU: products as loops, in double, from the same descriptors.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/core/bf16.h"
#include "kernels/core/f16.h"
#include "kernels/cuda/cublas_lt.h"
#include "tests/emulated_cuda/emulated_memory.h"
#include "tests/emulated_cuda/emulated_stream.h"

namespace dstrain {
namespace {

struct Description {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cublasOperation_t transpose_a = CUBLAS_OP_N;
  cublasOperation_t transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};
struct Layout {
  cudaDataType type;
  std::uint64_t rows;
  std::uint64_t columns;
  std::int64_t leading;
};

/// The nearest number whose mantissa has TF32's 10 bits, of an f32's 23.
double in_tf32(double value) {
  constexpr double kSteps = 0x1p11;  // of a fraction in [0.5, 1)
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);
  return std::ldexp(std::nearbyint(fraction * kSteps) / kSteps, exponent);
}

double read(const void* data, cudaDataType type, std::int64_t i) {
  if (type == CUDA_R_16BF) return static_cast<double>(to_float(static_cast<const BF16*>(data)[i]));
  if (type == CUDA_R_16F) return static_cast<double>(to_float(static_cast<const F16*>(data)[i]));
  return static_cast<double>(static_cast<const float*>(data)[i]);
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

/// As described when the call was made: descriptions and scalars are the host's.
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

void compute(const Product& p) {
  const bool a_is_transposed = p.how.transpose_a == CUBLAS_OP_T;
  const bool b_is_transposed = p.how.transpose_b == CUBLAS_OP_T;
  const bool in_short = p.how.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const auto rows = static_cast<std::int64_t>(p.result.rows);
  const auto columns = static_cast<std::int64_t>(p.result.columns);
  for (std::int64_t column = 0; column < columns; ++column) {
    for (std::int64_t row = 0; row < rows; ++row) {
      double sum = 0.0;
      for (std::int64_t k = 0; k < static_cast<std::int64_t>(p.depth()); ++k) {
        const double from_a =
            read(p.a, p.left.type,
                 a_is_transposed ? k + row * p.left.leading : row + k * p.left.leading);
        const double from_b =
            read(p.b, p.right.type,
                 b_is_transposed ? column + k * p.right.leading : k + column * p.right.leading);
        sum += in_short ? in_tf32(from_a) * in_tf32(from_b) : from_a * from_b;
      }
      const std::int64_t at = row + column * p.result.leading;
      auto value = static_cast<float>(sum) * p.alpha;
      if (p.beta != 0.0F) {
        value += p.beta * static_cast<float>(read(p.c, p.result.type, at));
      }
      if (p.how.epilogue == CUBLASLT_EPILOGUE_BIAS) {
        value += static_cast<float>(read(p.how.bias, p.result.type, row));
      }
      write(p.d, p.result.type, at, value);
    }
  }
}

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
                        const cublasLtMatmulAlgo_t* /*algorithm*/,
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
  emulated::Stream& stream = emulated::stream_of(handle);
  emulated::check_argument("cublasLtMatmul", product, stream.device());
  emulated::check_argument("cublasLtMatmul", workspace, stream.device());
  stream.enqueue([=] {
    std::memset(workspace, 0xff, workspace_bytes);
    compute(product);
  });
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t set_description(cublasLtMatmulDesc_t description,
                               cublasLtMatmulDescAttributes_t attribute,
                               const void* value,
                               std::size_t bytes) {
  auto& how = *reinterpret_cast<Description*>(description);
  void* to = nullptr;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      to = &how.transpose_a;
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      to = &how.transpose_b;
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      to = &how.epilogue;
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      to = &how.bias;
      break;
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memcpy(to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

CublasLt open_cublas_lt() {
  CublasLt lt{};
  lt.create = [](cublasLtHandle_t* handle) {
    *handle = reinterpret_cast<cublasLtHandle_t>(new int(0));
    return CUBLAS_STATUS_SUCCESS;
  };
  lt.destroy = [](cublasLtHandle_t handle) {
    delete reinterpret_cast<int*>(handle);
    return CUBLAS_STATUS_SUCCESS;
  };
  lt.version = []() -> std::size_t { return 0; };
  lt.status_string = [](cublasStatus_t /*status*/) { return "refused by the emulation"; };
  lt.matmul = multiply;
  lt.desc_create = [](cublasLtMatmulDesc_t* description, cublasComputeType_t compute,
                      cudaDataType_t) {
    *description = reinterpret_cast<cublasLtMatmulDesc_t>(new Description{.compute = compute});
    return CUBLAS_STATUS_SUCCESS;
  };
  lt.desc_destroy = [](cublasLtMatmulDesc_t description) {
    delete reinterpret_cast<Description*>(description);
    return CUBLAS_STATUS_SUCCESS;
  };
  lt.desc_set = set_description;
  lt.layout_create = [](cublasLtMatrixLayout_t* layout, cudaDataType type, std::uint64_t rows,
                        std::uint64_t columns, std::int64_t leading) {
    *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, leading});
    return CUBLAS_STATUS_SUCCESS;
  };
  lt.layout_destroy = [](cublasLtMatrixLayout_t layout) {
    delete reinterpret_cast<Layout*>(layout);
    return CUBLAS_STATUS_SUCCESS;
  };
  lt.preference_create = [](cublasLtMatmulPreference_t* preference) {
    *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new int(0));
    return CUBLAS_STATUS_SUCCESS;
  };
  lt.preference_destroy = [](cublasLtMatmulPreference_t preference) {
    delete reinterpret_cast<int*>(preference);
    return CUBLAS_STATUS_SUCCESS;
  };
  lt.preference_set = [](cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                         const void*, std::size_t) { return CUBLAS_STATUS_SUCCESS; };
  lt.heuristic = [](cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                    cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                    cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t results[],
                    int* found) {
    results[0].workspaceSize = 4096;
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
  };
  return lt;
}

}  // namespace dstrain
