// attention_test.cpp with cuDNN's kernels requested, and the log lines about choices.
#include "kernels/cuda/cudnn_attention.h"

#include <regex>

#include <catch2/catch.hpp>

#include "kernels/attention.h"
#include "tests/emulated_cuda/cudnn/emulated_cudnn_graph.h"
#include "tests/emulated_cuda/temporary_file.h"
#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

/// Writes `kernels` into every line of a file of choices.
void replace_algorithms(const TemporaryFile& file, const std::string& kernels) {
  std::string text;
  for (const std::string& line : file.lines())
    text += line + "\n";
  const std::regex chosen(R"("algorithm": *"[^"]*")");
  file.write(std::regex_replace(text, chosen, "\"algorithm\":\"" + kernels + "\""));
}

/// Attention forward and backward, of ones, with `wanted`; what was told.
std::vector<std::string> told_of(AttentionKernels wanted,
                                 const AttentionShape& shape,
                                 int times,
                                 const std::string& file = "") {
  std::vector<std::string> told;
  Lab lab(make_cuda_backend(0, {.matmul_algorithms_file = file,
                                .attention = wanted,
                                .tell = [&](const std::string& line) { told.push_back(line); }}));
  const std::int64_t tokens = shape.batch * shape.sequence;
  const std::int64_t width = shape.query_heads * shape.head_dim;
  const std::int64_t packed = width + 2 * shape.key_value_heads * shape.head_dim;
  const Tensor qkv = lab.put(Values(static_cast<std::size_t>(tokens * packed), 1.0), DType::kBF16,
                             {tokens, packed});
  const Tensor out = lab.unset(DType::kBF16, {tokens, width});
  const Tensor logsumexp = lab.unset(DType::kF32, {tokens, shape.query_heads});
  const Tensor delta = lab.unset(DType::kF32, {tokens, shape.query_heads});
  const Tensor dqkv = lab.unset(DType::kBF16, {tokens, packed});
  for (int i = 0; i < times; ++i) {
    lab.ops().attention_forward({packed_attention(shape, qkv), out, logsumexp}, lab.stream());
    lab.ops().attention_backward(
        packed_attention_backward(shape, qkv, out, logsumexp, out, delta, dqkv), lab.stream());
  }
  CHECK(lab.get(out) == Values(static_cast<std::size_t>(tokens * width), 1.0));
  return told;
}

}  // namespace

std::vector<BackendUnderTest> backends_under_test() {
  return {{.name = "emulated cuda with cuDNN", .make = [](int /*threads*/) {
             return make_cuda_backend(0, {.attention = AttentionKernels::kCudnn});
           }}};
}

TEST_CASE("attention's kernels are chosen once per pass and shape, and told", "[cuda][cudnn]") {
  const AttentionShape shape{2, 5, 4, 4, 16};
  CHECK(told_of(AttentionKernels::kOwn, shape, 2).empty());
  CHECK(
      told_of(AttentionKernels::kCudnn, shape, 2) ==
      std::vector<std::string>{"attention forward 2×5×4×16 bf16: cuDNN 9.19.0's kernels",
                               "attention backward 2×5×4×16 bf16: dstrain's kernels, as cuDNN "
                               "9.19.0 has no plan for it: its gradients of keys were found to be "
                               "wrong"});
  const auto measured = told_of(AttentionKernels::kFaster, shape, 3);
  REQUIRE(measured.size() == 3);  // of forward both times, and the choice
  CHECK_THAT(measured[0], Catch::Matches("attention forward 2×5×4×16 bf16: dstrain's kernels take "
                                         "[0-9]+ µs, cuDNN 9.19.0's [0-9]+ µs"));
  CHECK_THAT(measured[1], Catch::Matches("attention forward 2×5×4×16 bf16: (cuDNN|dstrain)'s "
                                         "kernels, [0-9]+ µs"));
}

TEST_CASE("a choice that the file has is made again without measuring", "[cuda][cudnn]") {
  const AttentionShape shape{2, 5, 4, 4, 16};
  const TemporaryFile file;
  CHECK(told_of(AttentionKernels::kFaster, shape, 1, file.path()).size() == 3);
  // This is a choice that another rank may have made, whatever a measurement here would show.
  for (const std::string kernels : {"cuDNN", "dstrain"}) {
    replace_algorithms(file, kernels);
    const auto again = told_of(AttentionKernels::kFaster, shape, 1, file.path());
    REQUIRE(again.size() == 2);
    CHECK_THAT(again[0], Catch::Contains(": " + kernels + "'s kernels, "));
  }
  replace_algorithms(file, "magic");
  CHECK_THROWS_WITH(told_of(AttentionKernels::kFaster, shape, 1, file.path()),
                    Catch::Contains("by \"magic\": expected \"dstrain\" or \"cuDNN\""));
}

TEST_CASE("what cuDNN refuses is left to dstrain's kernels, with its reason", "[cuda][cudnn]") {
  for (const AttentionKernels wanted : {AttentionKernels::kCudnn, AttentionKernels::kFaster}) {
    const auto told = told_of(wanted, {1, 5, 2, 2, emulated::kRefusedDim}, 2);
    REQUIRE(told.size() == 2);
    CHECK_THAT(told[0], Catch::Contains("attention forward 1×5×2×104 bf16: dstrain's kernels, as "
                                        "cuDNN 9.19.0 has no plan for it: cudnnBackendFinalize "
                                        "(tensor) failed"));
  }
}

TEST_CASE("shapes that are not of 16 bytes never get to cuDNN", "[cuda][cudnn]") {
  CHECK(told_of(AttentionKernels::kCudnn, {1, 5, 2, 2, 12}, 1).empty());
}

}  // namespace dstrain::test
