// matmul_bench: GFLOP/s of the linear layers' products at the shapes of GPT-2 124M and of a small
// model: CpuMatmul, oneDNN's matmul on the same unpacked operands, and the fastest variant of all.
// `matmul_bench [threads] [bf16|f32] [gpt2|small|N,I,O]`.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/bench/matmul_ceiling.h"

namespace dstrain::bench {
namespace {

const std::vector<LinearShape> kGpt2 = {
    {1024, 768, 2304}, {1024, 768, 768}, {1024, 768, 3072}, {1024, 3072, 768}, {1024, 768, 50257}};
const std::vector<LinearShape> kSmall = {
    {4096, 384, 640}, {4096, 384, 384}, {4096, 384, 2048}, {4096, 1024, 384}, {4096, 384, 256}};

void print_rows(const LinearShape& shape, DType dtype, int threads) {
  const double gflop = 2e-9 * static_cast<double>(shape.tokens) *
                       static_cast<double>(shape.inputs) * static_cast<double>(shape.outputs);
  for (const auto& [product, name] :
       {std::pair{LinearProduct::kForward, "forward"},
        std::pair{LinearProduct::kBackwardInput, "backward input"},
        std::pair{LinearProduct::kBackwardWeight, "backward weight"}}) {
    const std::vector<VariantTime> times = time_variants(shape, product, dtype, threads);
    const auto best = std::min_element(
        times.begin(), times.end(),
        [](const VariantTime& a, const VariantTime& b) { return a.seconds < b.seconds; });
    const auto plain = std::find_if(times.begin(), times.end(),
                                    [](const VariantTime& time) { return time.name == "matmul"; });
    const double ours = times.front().seconds;
    const std::string plain_columns =
        plain == times.end()
            ? fmt::format("{:>8}{:>7}", "-", "-")
            : fmt::format("{:>8.0f}{:>7.2f}", gflop / plain->seconds, plain->seconds / ours);
    fmt::print("{:<6}{:<7}{:<6}{:<17}{:>9.0f}{}{:>9.0f}  {}\n", shape.tokens, shape.inputs,
               shape.outputs, name, gflop / ours, plain_columns, gflop / best->seconds, best->name);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace dstrain::bench

int main(int argc, char** argv) {
  using namespace dstrain;
  using namespace dstrain::bench;
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const DType dtype = argc > 2 && std::string(argv[2]) == "f32" ? DType::kF32 : DType::kBF16;
  const std::string which = argc > 3 ? argv[3] : "gpt2";
  std::vector<LinearShape> shapes = which == "small" ? kSmall : kGpt2;
  if (which.find(',') != std::string::npos) {
    LinearShape shape;
    if (std::sscanf(which.c_str(), "%ld,%ld,%ld", &shape.tokens, &shape.inputs, &shape.outputs) !=
        3) {
      fmt::print(stderr, "matmul_bench: a shape is tokens,inputs,outputs, not '{}'\n", which);
      return 2;
    }
    shapes = {shape};
  }
  fmt::print("GFLOP/s, {}, {} threads\n{:<6}{:<7}{:<6}{:<17}{:>9}{:>8}{:>7}{:>9}  fastest\n",
             name_of(dtype), threads, "N", "I", "O", "product", "CpuMatmul", "matmul", "ratio",
             "best");
  for (const LinearShape& shape : shapes) {
    print_rows(shape, dtype, threads);
  }
  return 0;
}
