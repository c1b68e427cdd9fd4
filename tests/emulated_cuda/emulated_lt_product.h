// Products of the emulated cuBLASLt: what its opaque pointers point to, and the three functions
// that read it.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cublasLt.h>

namespace dstrain::emulated {

struct Description {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cublasOperation_t transpose_a = CUBLAS_OP_N;
  cublasOperation_t transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  void* aux = nullptr;
  std::int64_t aux_leading = 0;
  const float* a_scale = nullptr;  ///< on the device, as b_scale
  const float* b_scale = nullptr;

  [[nodiscard]] bool has_bias() const {
    return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  }
  [[nodiscard]] bool has_activation() const {
    return epilogue != CUBLASLT_EPILOGUE_DEFAULT && epilogue != CUBLASLT_EPILOGUE_BIAS;
  }
};
struct Layout {
  cudaDataType type;
  std::uint64_t rows;
  std::uint64_t columns;
  std::int64_t leading;
};

/// Multiplies with loops, in double; takes cublasLtMatmul's parameters.
cublasStatus_t multiply(cublasLtHandle_t handle,
                        cublasLtMatmulDesc_t description,
                        const void* alpha,
                        const void* a,
                        cublasLtMatrixLayout_t a_layout,
                        const void* b,
                        cublasLtMatrixLayout_t b_layout,
                        const void* beta,
                        const void* c,
                        cublasLtMatrixLayout_t c_layout,
                        void* d,
                        cublasLtMatrixLayout_t d_layout,
                        const cublasLtMatmulAlgo_t* algorithm,
                        void* workspace,
                        std::size_t workspace_bytes,
                        cudaStream_t stream);
/// cublasLtMatmulAlgoGetHeuristic.
cublasStatus_t propose(cublasLtHandle_t handle,
                       cublasLtMatmulDesc_t description,
                       cublasLtMatrixLayout_t a_layout,
                       cublasLtMatrixLayout_t b_layout,
                       cublasLtMatrixLayout_t c_layout,
                       cublasLtMatrixLayout_t d_layout,
                       cublasLtMatmulPreference_t preference,
                       int most,
                       cublasLtMatmulHeuristicResult_t results[],
                       int* found);
/// cublasLtMatmulAlgoCheck.
cublasStatus_t check_algorithm(cublasLtHandle_t handle,
                               cublasLtMatmulDesc_t description,
                               cublasLtMatrixLayout_t a_layout,
                               cublasLtMatrixLayout_t b_layout,
                               cublasLtMatrixLayout_t c_layout,
                               cublasLtMatrixLayout_t d_layout,
                               const cublasLtMatmulAlgo_t* algorithm,
                               cublasLtMatmulHeuristicResult_t* result);

}  // namespace dstrain::emulated
