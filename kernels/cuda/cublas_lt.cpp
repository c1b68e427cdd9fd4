#include "kernels/cuda/cublas_lt.h"

#include <fmt/format.h>

#include "kernels/cuda/open_library.h"

namespace dstrain {

CublasLt open_cublas_lt() {
  // The library's major version must go with the toolkit's headers that this was compiled with.
  void* const library =
      open_library(fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR), "matrix products on a GPU");
  CublasLt lt{};
  find_function(library, "cublasLtCreate", lt.create);
  find_function(library, "cublasLtDestroy", lt.destroy);
  find_function(library, "cublasLtGetVersion", lt.version);
  find_function(library, "cublasLtGetStatusString", lt.status_string);
  find_function(library, "cublasLtMatmul", lt.matmul);
  find_function(library, "cublasLtMatmulDescCreate", lt.desc_create);
  find_function(library, "cublasLtMatmulDescDestroy", lt.desc_destroy);
  find_function(library, "cublasLtMatmulDescSetAttribute", lt.desc_set);
  find_function(library, "cublasLtMatrixLayoutCreate", lt.layout_create);
  find_function(library, "cublasLtMatrixLayoutDestroy", lt.layout_destroy);
  find_function(library, "cublasLtMatmulPreferenceCreate", lt.preference_create);
  find_function(library, "cublasLtMatmulPreferenceDestroy", lt.preference_destroy);
  find_function(library, "cublasLtMatmulPreferenceSetAttribute", lt.preference_set);
  find_function(library, "cublasLtMatmulAlgoGetHeuristic", lt.heuristic);
  find_function(library, "cublasLtMatmulAlgoCheck", lt.algorithm_check);
  return lt;
}

}  // namespace dstrain
