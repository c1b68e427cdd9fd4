// cuBLASLt of the emulated GPU: descriptors as plain structs. Products: emulated_lt_product.cpp.
#include "tests/emulated_cuda/emulated_cublas_lt.h"

#include <cstring>

#include "kernels/cuda/cublas_lt.h"
#include "tests/emulated_cuda/emulated_lt_product.h"

namespace dstrain {

namespace emulated {
CublasLtState& cublas_lt() {
  static CublasLtState state;
  return state;
}
}  // namespace emulated

namespace {

using emulated::cublas_lt;
using emulated::Description;
using emulated::Layout;

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
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      to = &how.aux;
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      to = &how.aux_leading;
      break;
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      to = &how.a_scale;
      break;
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      to = &how.b_scale;
      break;
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
  std::memcpy(to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

/// A handle is a pointer to what was described.
template <typename Handle, typename Object>
cublasStatus_t make(Handle* handle, Object object) {
  *handle = reinterpret_cast<Handle>(new Object(object));
  return CUBLAS_STATUS_SUCCESS;
}
template <typename Object, typename Handle>
cublasStatus_t destroy(Handle handle) {
  delete reinterpret_cast<Object*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

CublasLt open_cublas_lt() {
  CublasLt lt{};
  lt.create = [](cublasLtHandle_t* handle) { return make(handle, 0); };
  lt.destroy = destroy<int>;
  lt.version = []() -> std::size_t { return cublas_lt().version; };
  lt.status_string = [](cublasStatus_t /*status*/) { return "refused by the emulation"; };
  lt.matmul = emulated::multiply;
  lt.desc_create = [](cublasLtMatmulDesc_t* description, cublasComputeType_t compute,
                      cudaDataType_t) {
    return make(description, Description{.compute = compute});
  };
  lt.desc_destroy = destroy<Description>;
  lt.desc_set = set_description;
  lt.layout_create = [](cublasLtMatrixLayout_t* layout, cudaDataType type, std::uint64_t rows,
                        std::uint64_t columns, std::int64_t leading) {
    return make(layout, Layout{type, rows, columns, leading});
  };
  lt.layout_destroy = destroy<Layout>;
  lt.preference_create = [](cublasLtMatmulPreference_t* preference) { return make(preference, 0); };
  lt.preference_destroy = destroy<int>;
  lt.preference_set = [](cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                         const void*, std::size_t) { return CUBLAS_STATUS_SUCCESS; };
  lt.heuristic = emulated::propose;
  lt.algorithm_check = emulated::check_algorithm;
  return lt;
}

}  // namespace dstrain
