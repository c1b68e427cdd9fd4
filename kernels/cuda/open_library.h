// Libraries that are opened when first needed: they are large, and machines without a GPU have
// none, so the program must not be linked with them.
#pragma once

#include <string>
#include <string_view>

#include <dlfcn.h>

#include "kernels/cuda/cuda_check.h"

namespace dstrain {

/// Opens a library beside the program (lib/), where the loader looks, or in the toolkit that the
/// program was built with. Throws CudaError, saying where it looked and that `who` ("matrix
/// products on a GPU") needs it. It is never closed.
void* open_library(const std::string& name, std::string_view who);

[[noreturn]] void fail_without_function(void* library, const char* name);

/// Throws CudaError where the library has no such function.
template <typename Function>
void find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    fail_without_function(library, name);
  }
}

}  // namespace dstrain
