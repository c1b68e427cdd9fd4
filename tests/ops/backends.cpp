// Every instruction set of the CPU, and every GPU: those with DSTRAIN_TEST_ATTENTION=cudnn attend
// through cuDNN, and with DSTRAIN_TEST_ALGORITHMS=FILE take the algorithms of matrix products that
// are timed and kept there (scripts/gpu_check).
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "kernels/cpu/cpu_backend.h"
#include "tests/harness/skip.h"
#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

/// Hopper's tensor cores align 32 products with the largest number among them and the sum, and keep
/// about 13 digits of them all (DeepSeek-V3, arXiv 2412.19437, section 3.3.2), dropping the others.
constexpr double kLossOfTensorCores = 0x1p-12;

std::string why_no_fp8(int gpu) {
  try {
    (void)make_cuda_backend(gpu, {.fp8 = true});
    return "";
  } catch (const std::runtime_error& refused) {
    return refused.what();
  }
}

}  // namespace

std::vector<BackendUnderTest> backends_under_test() {
  std::vector<BackendUnderTest> backends;
  for (const CpuIsa isa : supported_isas()) {
    backends.push_back({.name = "cpu " + std::string(name_of(isa)),
                        .make = [isa](int threads) { return make_cpu_backend(threads, isa); }});
  }
  static const CudaDevices found = find_cuda_devices();
  const char* const wanted = std::getenv("DSTRAIN_TEST_ATTENTION");
  const AttentionKernels attention = wanted != nullptr && std::string_view(wanted) == "cudnn"
                                         ? AttentionKernels::kCudnn
                                         : AttentionKernels::kOwn;
  const char* const kept_in = std::getenv("DSTRAIN_TEST_ALGORITHMS");
  const std::string algorithms = kept_in == nullptr ? "" : kept_in;
  for (std::size_t index = 0; index < found.names.size(); ++index) {
    backends.push_back({.name = "cuda " + found.names[index],
                        .make =
                            [=](int /*threads*/) {
                              return make_cuda_backend(
                                  static_cast<int>(index),
                                  {.matmul_algorithms_file = algorithms, .attention = attention});
                            },
                        .why_no_fp8 = why_no_fp8(static_cast<int>(index)),
                        .fp8_loss = kLossOfTensorCores});
  }
  if (found.names.empty()) {
    testing::leave_out("cuda", found.why_none);
  }
  return backends;
}

}  // namespace dstrain::test
