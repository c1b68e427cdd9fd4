// cuBLASLt, opened at run time: the library is half a gigabyte and machines without a GPU have
// none, so the program must not be linked with it.
#pragma once

#include <memory>
#include <string_view>

#include <cublasLt.h>

namespace dstrain {

/// The functions that are used, under their own names.
struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtGetStatusString) status_string;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulAlgoCheck) algorithm_check;

  /// Throws CudaError with the call's name where it failed.
  void check(cublasStatus_t status, std::string_view call) const;
};

/// Opens the library beside the program (lib/), where the loader looks, or in the toolkit that the
/// program was built with. Throws CudaError, saying where it looked. It is never closed.
CublasLt open_cublas_lt();

}  // namespace dstrain
