// dstrain --version on whatever machine this is: it starts without a driver or a library of CUDA,
// and says what it sees.
#include <catch2/catch.hpp>

#include "engine/comm/nccl_communicator.h"
#include "kernels/backend.h"
#include "tests/harness/program.h"

namespace dstrain::testing {
namespace {

std::string printed_with(const Program::Environment& environment) {
  Program program({dstrain_binary(), "--version"}, environment);
  const std::optional<int> status = program.wait(std::chrono::seconds(60));
  REQUIRE(status.has_value());
  REQUIRE(WIFEXITED(*status));
  CHECK(WEXITSTATUS(*status) == 0);
  return program.out();
}

}  // namespace

TEST_CASE("--version says what the program was built with and which devices it sees", "[cmd]") {
  const CudaDevices cuda = find_cuda_devices();
  const std::string text = printed_with({});
  INFO(text);
  CHECK_THAT(text, Catch::StartsWith("dstrain "));
  CHECK_THAT(text, Catch::Contains("\ncpu: cpu, "));
  CHECK_THAT(text, Catch::Contains(cuda.built_with.empty() ? "without CUDA" : cuda.built_with));
  for (const std::string& name : cuda.names) {
    CHECK_THAT(text, Catch::Contains(name));
  }
  CHECK(cuda.names.empty() == (text.find("\nno GPU: ") != std::string::npos));
  CHECK_THAT(text, Catch::Contains(cuda.why_none));
  const NcclLibrary nccl = find_nccl();
  CHECK_THAT(text, nccl.version.empty() ? Catch::Contains("\nno NCCL: " + nccl.why_none)
                                        : Catch::Contains("\nbetween GPUs: " + nccl.version));
}

TEST_CASE("--version names no device where none may be seen", "[cmd]") {
  CHECK_THAT(printed_with({{"CUDA_VISIBLE_DEVICES", ""}}), Catch::Contains("\nno GPU: "));
}

}  // namespace dstrain::testing
