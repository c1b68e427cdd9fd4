// Products of the emulated cuBLASLt: what its opaque pointers point to, and the three functions
// that read it.
#pragma once

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

decltype(cublasLtMatmul) multiply;  ///< as loops, in double
decltype(cublasLtMatmulAlgoGetHeuristic) propose;
decltype(cublasLtMatmulAlgoCheck) check_algorithm;

}  // namespace dstrain::emulated
