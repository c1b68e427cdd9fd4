#include "kernels/cuda/cublas_lt.h"

#include <climits>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include "kernels/cuda/cuda_check.h"

namespace dstrain {
namespace {

/// Its major version, with the toolkit's headers that this was compiled with.
std::string library_name() {
  return fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
}

/// The folder of this program, where scripts/bundle puts libraries into lib/.
std::string program_folder() {
  std::string path(PATH_MAX, '\0');
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size());
  path.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  return path.substr(0, path.rfind('/'));
}

void* open_library() {
  const std::string name = library_name();
  const std::vector<std::string> places{program_folder() + "/lib/" + name, name,
                                        DSTRAIN_CUDA_LIBRARIES "/" + name};
  std::string why;
  for (const std::string& place : places) {
    if (void* const library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) {
      return library;
    }
    why += fmt::format("\n  {}", dlerror());
  }
  throw CudaError(
      fmt::format("matrix products on a GPU want {}, which did not open:{}", name, why));
}

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    throw CudaError(fmt::format("{} has no function {}", library_name(), name));
  }
}

}  // namespace

CublasLt open_cublas_lt() {
  void* const library = open_library();
  CublasLt lt{};
  find(library, "cublasLtCreate", lt.create);
  find(library, "cublasLtDestroy", lt.destroy);
  find(library, "cublasLtGetVersion", lt.version);
  find(library, "cublasLtGetStatusString", lt.status_string);
  find(library, "cublasLtMatmul", lt.matmul);
  find(library, "cublasLtMatmulDescCreate", lt.desc_create);
  find(library, "cublasLtMatmulDescDestroy", lt.desc_destroy);
  find(library, "cublasLtMatmulDescSetAttribute", lt.desc_set);
  find(library, "cublasLtMatrixLayoutCreate", lt.layout_create);
  find(library, "cublasLtMatrixLayoutDestroy", lt.layout_destroy);
  find(library, "cublasLtMatmulPreferenceCreate", lt.preference_create);
  find(library, "cublasLtMatmulPreferenceDestroy", lt.preference_destroy);
  find(library, "cublasLtMatmulPreferenceSetAttribute", lt.preference_set);
  find(library, "cublasLtMatmulAlgoGetHeuristic", lt.heuristic);
  return lt;
}

}  // namespace dstrain
