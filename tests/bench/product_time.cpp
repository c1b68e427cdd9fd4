#include "tests/bench/product_time.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "kernels/core/bf16.h"
#include "kernels/math/philox.h"

namespace dstrain::bench {
namespace {

constexpr std::int64_t kMostOutputBytes = std::int64_t{256} << 20;

/// A matrix of random values between -1 and 1 on a device.
class Matrix {
 public:
  Matrix(Device& device, std::int64_t rows, std::int64_t columns, DType dtype)
      : memory_(device.allocate(rows * columns * size_of(dtype), "an operand")),
        tensor_(memory_.data(), dtype, {rows, columns}) {
    const std::int64_t count = rows * columns;
    std::vector<float> values(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; i += 4) {
      const auto words = philox(11, static_cast<std::uint64_t>(i), 0);
      for (std::int64_t k = i; k < std::min(count, i + 4); ++k) {
        values[static_cast<std::size_t>(k)] =
            static_cast<float>(words[static_cast<std::size_t>(k - i)]) * 0x1p-31F - 1.0F;
      }
    }
    std::vector<BF16> narrow;
    const void* host = values.data();
    if (dtype == DType::kBF16) {
      narrow.resize(values.size());
      std::transform(values.begin(), values.end(), narrow.begin(),
                     [](float value) { return to_bf16(value); });
      host = narrow.data();
    }
    device.copy_from_host(host, tensor_, device.compute_stream());
    device.compute_stream().synchronize();
  }
  [[nodiscard]] const Tensor& tensor() const { return tensor_; }

 private:
  DeviceMemory memory_;
  Tensor tensor_;
};

/// The time of one call: the fastest of several rounds, each long enough for the clock.
double seconds_of(Stream& stream, const std::function<void()>& enqueue) {
  using Clock = std::chrono::steady_clock;
  const auto time = [&](int calls) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < calls; ++i) {
      enqueue();
    }
    stream.synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  constexpr double kRoundSeconds = 0.03;
  constexpr int kRounds = 5;
  time(1);  // chooses algorithms
  const int calls = std::clamp(static_cast<int>(kRoundSeconds / time(1)), 1, 1000);
  double best = time(calls);
  for (int round = 1; round < kRounds; ++round) {
    best = std::min(best, time(calls));
  }
  return best / calls;
}

double layer_seconds(Backend& backend, const LinearShape& layer, DType dtype) {
  const std::int64_t fitting = kMostOutputBytes / (layer.outputs * size_of(dtype));
  const std::int64_t tokens = std::clamp<std::int64_t>(fitting, 1, layer.tokens);
  Device& device = *backend.device;
  Stream& stream = device.compute_stream();
  const Matrix x(device, tokens, layer.inputs, dtype);
  const Matrix w(device, layer.outputs, layer.inputs, dtype);
  const Matrix y(device, tokens, layer.outputs, dtype);
  const Matrix dw(device, layer.outputs, layer.inputs, DType::kF32);
  Ops& ops = *backend.ops;
  double seconds = 0.0;
  // In this order, so that each reads random values that no other has overwritten.
  seconds += seconds_of(stream, [&] {
    ops.linear_backward_weight(y.tensor(), x.tensor(), dw.tensor(), Write::kAdd, stream);
  });
  seconds += seconds_of(
      stream, [&] { ops.linear_backward_input(y.tensor(), w.tensor(), x.tensor(), stream); });
  const Matrix fresh(device, tokens, layer.inputs, dtype);
  seconds += seconds_of(
      stream, [&] { ops.linear_forward(fresh.tensor(), w.tensor(), {}, y.tensor(), stream); });
  return seconds * static_cast<double>(layer.tokens) / static_cast<double>(tokens) *
         static_cast<double>(layer.count);
}

}  // namespace

double product_seconds(Backend& backend, std::span<const LinearShape> layers, DType dtype) {
  double seconds = 0.0;
  for (const LinearShape& layer : layers) {
    seconds += layer_seconds(backend, layer, dtype);
  }
  return seconds;
}

double square_product_flops(Backend& backend, std::int64_t n, DType dtype) {
  Device& device = *backend.device;
  Stream& stream = device.compute_stream();
  const Matrix x(device, n, n, dtype);
  const Matrix w(device, n, n, dtype);
  const Matrix y(device, n, n, dtype);
  const double seconds = seconds_of(
      stream, [&] { backend.ops->linear_forward(x.tensor(), w.tensor(), {}, y.tensor(), stream); });
  const auto side = static_cast<double>(n);
  return 2.0 * side * side * side / seconds;
}

}  // namespace dstrain::bench
