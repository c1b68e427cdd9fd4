// Whether there is a GPU to test, and what it can do. Says what is left out, and why.
#pragma once

#include <stdexcept>

#include <catch2/catch.hpp>

#include "kernels/backend.h"
#include "tests/harness/skip.h"

namespace dstrain::test {

inline bool has_gpu() {
  const CudaDevices found = find_cuda_devices();
  if (found.names.empty()) {
    testing::skip(found.why_none);
  }
  return !found.names.empty();
}

/// Whether the GPU has products in 8 bits.
inline bool has_fp8() {
  try {
    (void)make_cuda_backend(0, {.fp8 = true});
    return true;
  } catch (const std::runtime_error& refused) {
    testing::skip(refused.what());
    return false;
  }
}

}  // namespace dstrain::test
