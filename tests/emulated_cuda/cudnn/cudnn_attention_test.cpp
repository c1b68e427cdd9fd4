// attention_test.cpp with cuDNN's kernels wanted, and what is told of choices.
#include "kernels/cuda/cudnn_attention.h"

#include <catch2/catch.hpp>

#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

/// Attention forward and backward, of ones, with `wanted`; what was told.
std::vector<std::string> told_of(AttentionKernels wanted, const AttentionShape& shape, int times) {
  std::vector<std::string> told;
  Lab lab(make_cuda_backend(
      0, {.attention = wanted, .tell = [&](const std::string& line) { told.push_back(line); }}));
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
    lab.ops().attention_forward(shape, qkv, out, logsumexp, lab.stream());
    lab.ops().attention_backward(shape, qkv, out, logsumexp, out, delta, dqkv, lab.stream());
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
  const AttentionShape shape{2, 5, 4, 2, 16};
  CHECK(told_of(AttentionKernels::kOwn, shape, 2).empty());
  CHECK(told_of(AttentionKernels::kCudnn, shape, 2) ==
        std::vector<std::string>{"attention forward 2×5×4/2×16 bf16: cuDNN 9.19.0's kernels",
                                 "attention backward 2×5×4/2×16 bf16: cuDNN 9.19.0's kernels"});
  const auto measured = told_of(AttentionKernels::kFaster, shape, 3);
  REQUIRE(measured.size() == 2);
  for (const std::string& line : measured) {
    CHECK_THAT(line, Catch::Matches("attention (forward|backward) 2×5×4/2×16 bf16: cuDNN 9.19.0 "
                                    "[0-9.]+ ms, dstrain's kernels [0-9.]+ ms: (cuDNN|dstrain)'s"));
  }
}

TEST_CASE("shapes that are not of 16 bytes never get to cuDNN", "[cuda][cudnn]") {
  CHECK(told_of(AttentionKernels::kCudnn, {1, 5, 2, 2, 12}, 1).empty());
}

}  // namespace dstrain::test
