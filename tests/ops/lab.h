// Lab: tensors and operations of one backend, for tests. Values go in and come out as doubles,
// through the device's own copies, so that the same test runs on any device. conforms() runs an
// operation on every backend under test and compares with what an fp64 loop expects.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"

namespace dstrain::test {

using Values = std::vector<double>;

/// `n` numbers uniform in [-scale, scale], the same for the same seed.
Values random_values(std::int64_t n, std::uint64_t seed, double scale = 1.0);
/// The nearest numbers that a tensor of this dtype holds. The reference computes from these, so
/// that only the operation's own arithmetic is judged.
Values rounded_to(DType dtype, Values values);

class Lab {
 public:
  explicit Lab(Backend backend) : backend_(std::move(backend)) {}

  [[nodiscard]] Ops& ops() { return *backend_.ops; }
  [[nodiscard]] Device& device() { return *backend_.device; }
  [[nodiscard]] Stream& stream() { return backend_.device->compute_stream(); }
  [[nodiscard]] Tensor put(const Values& values, DType dtype, Shape shape);
  /// A tensor that the operation is to overwrite: filled with 99, or NaN where it is of 8 bits.
  [[nodiscard]] Tensor unset(DType dtype, Shape shape);
  [[nodiscard]] Tensor put_ids(const std::vector<std::int32_t>& ids);
  [[nodiscard]] Values get(ConstTensor tensor);

 private:
  [[nodiscard]] Tensor allocate(DType dtype, Shape shape);

  Backend backend_;
  std::vector<DeviceMemory> memory_;  // after the backend: released before it
};

struct BackendUnderTest {
  std::string name;
  std::function<Backend(int threads)> make;
  std::string why_no_fp8{};  ///< it has no products in 8 bits
  /// What it loses of the largest sum where it adds 32 products in 8 bits, beside f32's rounding.
  double fp8_loss = 0.0;
};
/// Every instruction set of the CPU backend that this processor runs, slowest first, then GPUs. The
/// tests on an emulated GPU have another list (tests/emulated_cuda).
std::vector<BackendUnderTest> backends_under_test();

/// An output that is right if |actual - expected| ≤ relative · |expected| + absolute, for every
/// element.
struct Expected {
  std::string_view name;
  Values values;
  double relative;
  double absolute;
};
enum class AcrossThreads : std::uint8_t { kSameBits, kWithinTolerance };

/// The backends that have products in 8 bits; reports those that have not.
std::vector<BackendUnderTest> backends_with_fp8();

/// `run` returns its outputs in the order of `expected`.
void conforms(const std::vector<Expected>& expected,
              const std::function<std::vector<Values>(Lab&)>& run,
              AcrossThreads across_threads = AcrossThreads::kSameBits,
              const std::vector<BackendUnderTest>& backends = backends_under_test());

/// d f / d x[i] for all i, by central differences in fp64; f must be smooth. The step 1e-5 leaves
/// an error of about 1e-10 for values of order one.
Values finite_difference(const std::function<double(const Values&)>& f, Values x);

/// Rounding of a result to its dtype: half a unit in the last place (2⁻⁸ with bf16's 8 bits, 2⁻¹¹
/// with f16's 11), and a little for the f32 arithmetic before it, at least f32's 2e-6.
constexpr double relative_error_of(DType dtype) {
  return dtype == DType::kBF16 ? 0x1.02p-8 : dtype == DType::kF16 ? 0x1.02p-11 : 2e-6;
}
/// Half of the step between f16's subnormals, which are the multiples of 2⁻²⁴ below 2⁻¹⁴. The
/// subnormals of the other dtypes are below everything that is tested.
constexpr double absolute_error_of(DType dtype) {
  return dtype == DType::kF16 ? 0x1p-25 : 0.0;
}

constexpr DType kComputeDtypes[] = {DType::kF32, DType::kBF16, DType::kF16};

}  // namespace dstrain::test
