// Matrix products of the CUDA backend on the emulated GPU: the options that choose how they are
// computed. That they are right is op_conformance_emulated_cuda_test's subject.
//
// N tokens, I inputs, O outputs
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/math/activation.h"
#include "tests/emulated_cuda/emulated_cublas_lt.h"
#include "tests/emulated_cuda/emulated_gpu.h"
#include "tests/emulated_cuda/temporary_file.h"
#include "tests/ops/lab.h"

namespace dstrain::test {
namespace {

using emulated::cublas_lt;
using Indices = std::vector<std::size_t>;

/// Algorithms 0, 1, 2 take so long from now on.
void set_speeds(double first, double second, double third) {
  cublas_lt() = {};
  cublas_lt().microseconds = {first, second, third};
}

/// Indices of the algorithms that `count` products of [4 × 16]·[16 × 8] take, timings left out.
Indices algorithms_of(const std::string& file, int count) {
  Lab lab(make_cuda_backend(0, {.matmul_algorithms_file = file}));
  const Tensor x_NI = lab.put(random_values(4 * 16, 1), DType::kF32, {4, 16});
  const Tensor w_OI = lab.put(random_values(8 * 16, 2), DType::kF32, {8, 16});
  const Tensor y_NO = lab.unset(DType::kF32, {4, 8});
  Indices algorithms;
  for (int i = 0; i < count; ++i) {
    lab.ops().linear_forward(x_NI, w_OI, {}, y_NO, lab.stream());
    algorithms.push_back(cublas_lt().ran.back());
  }
  return algorithms;
}

/// Whether a product of operands of that type is made in TF32.
bool is_in_tf32(const CudaOptions& options, DType dtype) {
  Lab lab(make_cuda_backend(0, options));
  const Tensor x = lab.put({1.0, 2.0}, dtype, {1, 2});
  lab.ops().linear_forward(x, x, {}, lab.unset(DType::kF32, {1, 1}), lab.stream());
  return cublas_lt().is_in_tf32;
}

}  // namespace

TEST_CASE("f32 is multiplied in full unless TF32 is asked for", "[cuda][matmul]") {
  CHECK_FALSE(is_in_tf32({}, DType::kF32));
  CHECK(is_in_tf32({.tf32 = true}, DType::kF32));
  CHECK_FALSE(is_in_tf32({.tf32 = true}, DType::kF16));  // whose sums are f32's either way
}

TEST_CASE("without a file the first proposal is taken, and nothing is timed", "[cuda][matmul]") {
  set_speeds(30.0, 10.0, 20.0);
  CHECK(algorithms_of("", 2) == Indices{0, 0});
  CHECK(cublas_lt().ran.size() == 2);
}

TEST_CASE("an algorithm that is proposed and then refused gives way to the next",
          "[cuda][matmul]") {
  set_speeds(10.0, 20.0, 30.0);
  cublas_lt().refused_when_run = 1;
  CHECK(algorithms_of("", 2) == Indices{1, 1});
  const TemporaryFile file;
  CHECK(algorithms_of(file.path(), 2) == Indices{1, 1});
  cublas_lt().refused_when_run = emulated::kAlgorithms;
  CHECK_THROWS_WITH(algorithms_of("", 1), Catch::Contains("has no algorithm for 4 × 8 × 16 nt"));
  const TemporaryFile other;
  CHECK_THROWS_WITH(algorithms_of(other.path(), 1), Catch::Contains("has no algorithm for"));
}

TEST_CASE("the fastest algorithm is found once and kept for later runs", "[cuda][matmul]") {
  const TemporaryFile file;
  set_speeds(30.0, 10.0, 20.0);
  CHECK(algorithms_of(file.path(), 2) == Indices{1, 1});
  CHECK(cublas_lt().ran.size() > 2);
  // Another process, whose clock says otherwise: the bits must be those of the first run.
  set_speeds(10.0, 30.0, 20.0);
  CHECK(algorithms_of(file.path(), 2) == Indices{1, 1});
  CHECK(cublas_lt().ran.size() == 2);  // untimed
  // Another library has other algorithms: the line is not for it.
  cublas_lt().version = 130'001;
  CHECK(algorithms_of(file.path(), 1) == Indices{0});
  CHECK(file.lines().size() == 2);
}

TEST_CASE("an algorithm that is hardly faster is not preferred", "[cuda][matmul]") {
  const TemporaryFile file;
  set_speeds(10.0, 9.9, 9.95);
  CHECK(algorithms_of(file.path(), 1) == Indices{0});
}

TEST_CASE("a kept algorithm that the library refuses is an error that names it", "[cuda][matmul]") {
  const TemporaryFile file;
  set_speeds(30.0, 10.0, 20.0);
  (void)algorithms_of(file.path(), 1);
  std::string line = file.lines().front();
  line.replace(line.find("0000000000000002"), 16, "0000000000000009");
  file.write(line + "\n");
  CHECK_THROWS_WITH(algorithms_of(file.path(), 1),
                    Catch::StartsWith(file.path() + " gives \"0000000000000009") &&
                        Catch::Contains("for 4 × 8 × 16 nt f32 → f32, aligned to") &&
                        Catch::Contains("remove the line"));
}

TEST_CASE("timing a product that is added leaves what it is added to alone", "[cuda][matmul]") {
  const TemporaryFile file;
  set_speeds(30.0, 10.0, 20.0);
  Lab lab(make_cuda_backend(0, {.matmul_algorithms_file = file.path()}));
  const Tensor dw_OI = lab.put({100.0}, DType::kF32, {1, 1});
  const Tensor two = lab.put({2.0}, DType::kF32, {1, 1});
  lab.ops().linear_backward_weight(two, two, dw_OI, Write::kAdd, lab.stream());
  CHECK(lab.get(dw_OI) == Values{104.0});
  CHECK(cublas_lt().ran.size() > 1);
  CHECK(cublas_lt().ran.back() == 1);
}

TEST_CASE("a product that is added is not timed where there is no memory for it",
          "[cuda][matmul]") {
  constexpr std::int64_t kWidth = 1024;  // 4 MiB
  constexpr std::int64_t kLeft = 2 << 20;
  const TemporaryFile file;
  set_speeds(30.0, 10.0, 20.0);
  Lab lab(make_cuda_backend(0, {.matmul_algorithms_file = file.path()}));
  const Tensor dw_OI = lab.put(Values(kWidth * kWidth, 100.0), DType::kF32, {kWidth, kWidth});
  const Tensor twos = lab.put(Values(kWidth, 2.0), DType::kF32, {1, kWidth});
  const DeviceMemory rest =
      lab.device().allocate(lab.device().memory_info().available_bytes - kLeft, "all the rest");
  lab.ops().linear_backward_weight(twos, twos, dw_OI, Write::kAdd, lab.stream());
  CHECK(lab.get(dw_OI) == Values(kWidth * kWidth, 104.0));
  CHECK(cublas_lt().ran == Indices{0});
  REQUIRE(file.lines().size() == 1);
  CHECK_THAT(file.lines().front(), Catch::EndsWith("\"microseconds\":0.0}"));
}

namespace {

/// A linear layer with its GELU, and the way back. Both as one product each, or as two kernels.
struct Activated {
  Values pre, y, d_pre;
};
Activated activated(const CudaOptions& options, std::int64_t width, ActivationKind kind) {
  Lab lab(make_cuda_backend(0, options));
  const DType dtype = DType::kBF16;
  const Tensor x_NI = lab.put(random_values(4 * 16, 1), dtype, {4, 16});
  const Tensor w_OI = lab.put(random_values(width * 16, 2), dtype, {width, 16});
  const Tensor w_down = lab.put(random_values(16 * width, 3), dtype, {16, width});
  const Tensor bias_O = lab.put(random_values(width, 4), dtype, {width});
  const Tensor pre_NO = lab.unset(dtype, {4, width});
  const Tensor y_NO = lab.unset(dtype, {4, width});
  const Tensor d_pre_NO = lab.unset(dtype, {4, width});
  lab.ops().linear_activation_forward(kind, x_NI, w_OI, bias_O, pre_NO, y_NO, lab.stream());
  lab.ops().linear_activation_backward(kind, x_NI, w_down, pre_NO, d_pre_NO, lab.stream());
  return {lab.get(pre_NO), lab.get(y_NO), lab.get(d_pre_NO)};
}

void check_close(const Values& actual, const Values& expected) {
  constexpr double kRounding = 0x1p-7;  // once more or less to bf16
  REQUIRE(actual.size() == expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    CHECK(std::abs(actual[i] - expected[i]) <= kRounding * (std::abs(expected[i]) + 0.2));
  }
}

}  // namespace

TEST_CASE("an activation is computed in its product where that is faster", "[cuda][matmul]") {
  constexpr ActivationKind kGelu = ActivationKind::kGeluTanh;
  set_speeds(10.0, 11.0, 12.0);
  const Activated separate = activated({}, 24, kGelu);
  CHECK(cublas_lt().ran == Indices{0, 0});
  CHECK(cublas_lt().ran_activated.empty());

  const TemporaryFile file;
  const CudaOptions timed{.matmul_algorithms_file = file.path()};
  set_speeds(10.0, 11.0, 12.0);
  cublas_lt().activation_microseconds = 0.5 * emulated::kKernelMicroseconds;
  const Activated fused = activated(timed, 24, kGelu);
  check_close(fused.pre, separate.pre);
  check_close(fused.y, separate.y);
  check_close(fused.d_pre, separate.d_pre);
  CHECK_FALSE(cublas_lt().ran_activated.empty());
  // So later runs fuse too, without timing, and get the same bits.
  set_speeds(10.0, 11.0, 12.0);
  CHECK(activated(timed, 24, kGelu).y == fused.y);
  CHECK(cublas_lt().ran.empty());
  CHECK(cublas_lt().ran_activated == Indices{0, 0});
}

TEST_CASE("an activation follows its product where fusing them is slower, or cannot be",
          "[cuda][matmul]") {
  const auto last_is_separate = [](std::int64_t width, ActivationKind kind) {
    const TemporaryFile file;
    const Activated result = activated({.matmul_algorithms_file = file.path()}, width, kind);
    const Activated separate = activated({}, width, kind);
    CHECK(result.y == separate.y);
    CHECK(result.d_pre == separate.d_pre);
  };
  set_speeds(10.0, 11.0, 12.0);
  cublas_lt().activation_microseconds = 2.0 * emulated::kKernelMicroseconds;
  last_is_separate(24, ActivationKind::kGeluTanh);
  CHECK_FALSE(cublas_lt().ran_activated.empty());  // it was tried

  for (const auto& [width, kind, has_activations] :
       {std::tuple<std::int64_t, ActivationKind, bool>{20, ActivationKind::kGeluTanh, true},
        {24, ActivationKind::kSilu, true},
        {24, ActivationKind::kGeluTanh, false}}) {
    CAPTURE(width, static_cast<int>(kind), has_activations);
    set_speeds(10.0, 11.0, 12.0);
    cublas_lt().has_activations = has_activations;
    last_is_separate(width, kind);
    CHECK(cublas_lt().ran_activated.empty());
  }
}

}  // namespace dstrain::test
