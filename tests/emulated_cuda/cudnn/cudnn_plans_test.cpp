// The real cuDNN is given attention's graphs and the description of an H100, finds engines for them
// and compiles their kernels, all without a GPU: a driver's library that only loads
// (driver_without_gpu.cpp) stands where the driver's would. What stays unproven is that they run.
#include <optional>

#include <catch2/catch.hpp>
#include <dlfcn.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/cudnn_sdpa.h"
#include "tests/harness/skip.h"

namespace dstrain {
namespace {

/// What cuDNN says of the device, in its own words. An H100's figures (CUDA C++ Programming Guide,
/// "Compute Capabilities"; NVIDIA H100 data sheet), or those of another compute capability.
std::string device_json(int compute_capability) {
  return fmt::format(
      R"({{"deviceName":"NVIDIA H100 80GB HBM3","cudaDeviceId":0,"deviceVer":{},"driverVer":13000,)"
      R"("maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],)"
      R"("regsPerBlock":65536,"multiProcessorCount":132,"smClockRateKHz":1980000,)"
      R"("memClockRateKHz":2619000,"l2CacheSize":52428800,"warpSize":32,)"
      R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":{},)"
      R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"pciDeviceId":0,)"
      R"("maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"isTccDriver":0,)"
      R"("supportCoopLaunch":1,"totalGlobalMem":85029158912}})",
      compute_capability * 10, compute_capability >= 90 ? 232448 : 166912);
}

/// The library, or nothing with a word of it where this machine has none.
std::optional<Cudnn> real_cudnn() {
  if (dlopen(DSTRAIN_TEST_DRIVER, RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    FAIL(dlerror());
  }
  try {
    return open_cudnn();
  } catch (const CudaError& error) {
    testing::skip(error.what());
    return std::nullopt;
  }
}

struct Found {
  std::int64_t workspace_bytes;  ///< -1: no plan
  std::string why_none;
};
Found plan_of(const Cudnn& cudnn,
              Pass pass,
              const AttentionShape& shape,
              DType dtype,
              int compute_capability = 90,
              std::int64_t most_workspace = std::int64_t{1} << 31) {
  CudnnGraph graph(cudnn);
  if (pass == Pass::kForward) {
    sdpa::add_forward(graph, shape, dtype);
  } else {
    sdpa::add_backward(graph, shape, dtype);
  }
  Found found{-1, {}};
  const CudnnDescriptor device = describe_device(cudnn, device_json(compute_capability));
  if (const auto plan = graph.plan(device, most_workspace, found.why_none); plan != nullptr) {
    found = {plan->workspace_bytes(), {}};
  }
  return found;
}

TEST_CASE("cuDNN has plans for attention of training on an H100", "[cudnn]") {
  const std::optional<Cudnn> cudnn = real_cudnn();
  if (!cudnn) return;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const AttentionShape& shape : {AttentionShape{4, 1024, 12, 12, 64},
                                        {2, 1000, 32, 8, 128},
                                        {1, 77, 8, 1, 96},
                                        {2, 512, 6, 2, 80}}) {
      CAPTURE(name_of(dtype), shape.sequence, shape.query_heads, shape.head_dim);
      const Found forward = plan_of(*cudnn, Pass::kForward, shape, dtype);
      CHECK(forward.why_none.empty());
      CHECK(forward.workspace_bytes >= 0);
      CHECK(forward.workspace_bytes <= 4096);
      if (shape.query_heads != shape.key_value_heads) continue;
      // The workspace of backward according to kernels/backend.h and the memory estimate: dS as
      // bf16 and f32.
      const Found backward = plan_of(*cudnn, Pass::kBackward, shape, dtype);
      CHECK(backward.why_none.empty());
      const std::int64_t rows =
          shape.batch * shape.query_heads * ((shape.sequence + 127) / 128) * 128;
      CHECK(backward.workspace_bytes >=
            2 * shape.batch * shape.query_heads * shape.sequence * shape.sequence);
      CHECK(backward.workspace_bytes <= 6 * rows * ((shape.sequence + 127) / 128 * 128) + 4096);
    }
  }
}

TEST_CASE("cuDNN has plans for attention on an A100", "[cudnn]") {
  const std::optional<Cudnn> cudnn = real_cudnn();
  if (!cudnn) return;
  const AttentionShape shape{4, 1024, 12, 12, 64};
  CHECK(plan_of(*cudnn, Pass::kForward, shape, DType::kBF16, 80).workspace_bytes >= 0);
  CHECK(plan_of(*cudnn, Pass::kBackward, shape, DType::kBF16, 80).workspace_bytes >= 0);
}

TEST_CASE("a plan that wants too much workspace is none, and says how much", "[cudnn]") {
  const std::optional<Cudnn> cudnn = real_cudnn();
  if (!cudnn) return;
  const Found found =
      plan_of(*cudnn, Pass::kBackward, {4, 1024, 12, 12, 64}, DType::kBF16, 90, 1 << 20);
  CHECK(found.workspace_bytes == -1);
  CHECK_THAT(found.why_none, Catch::Matches("it wants [0-9]+ MiB of workspace"));
}

TEST_CASE("what cuDNN has no plan for says why", "[cudnn]") {
  const std::optional<Cudnn> cudnn = real_cudnn();
  if (!cudnn) return;
  // Heads of 20 are no multiple of 8, which its kernels want.
  const Found found = plan_of(*cudnn, Pass::kForward, {1, 64, 2, 2, 20}, DType::kBF16);
  CHECK(found.workspace_bytes == -1);
  CHECK_FALSE(found.why_none.empty());
}

}  // namespace
}  // namespace dstrain
