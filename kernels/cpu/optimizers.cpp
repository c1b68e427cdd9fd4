// The optimizers: pieces of a flat range shared out over threads. No sum but LAMB's goes over the
// elements, and that one in fixed blocks.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"

namespace dstrain {
namespace {

/// Elements of a task: small enough to share out evenly, large enough to stream from memory.
constexpr std::int64_t kPiece = 1 << 15;

FloatFormat format_of(const ConstTensor& tensor, std::string_view name) {
  expect_compute_dtype(tensor.dtype(), name);
  switch (tensor.dtype()) {
    case DType::kBF16:
      return FloatFormat::kBF16;
    case DType::kF16:
      return FloatFormat::kF16;
    default:
      return FloatFormat::kF32;
  }
}

/// Any of the formats, with `numel` elements.
ConstFloats floats(const ConstTensor& tensor, std::string_view name, std::int64_t numel) {
  const FloatFormat format = format_of(tensor, name);
  expect(tensor, name, tensor.dtype(), numel);
  return {tensor.data(), format};
}
Floats floats(const Tensor& tensor, std::string_view name, std::int64_t numel) {
  return {tensor.data(), floats(ConstTensor(tensor), name, numel).format};
}
/// What an optimizer keeps: f16 has too small a range for it.
Floats state(const Tensor& tensor, std::string_view name, std::int64_t numel) {
  check(tensor.dtype() != DType::kF16, "{} is f16, expected f32 or bf16", name);
  return floats(tensor, name, numel);
}
constexpr Floats kNoFloats{nullptr, FloatFormat::kF32};

OptimizerRange range_of(const OptimizerTensors& tensors) {
  const std::int64_t n = tensors.master.numel();
  const Tensor& first = tensors.first_moment;
  const Tensor& second = tensors.second_moment;
  const Tensor& copy = tensors.parameters;
  return {.gradient = floats(tensors.gradient, "gradient", n),
          .master = state(tensors.master, "master", n),
          .first_moment = first.empty() ? kNoFloats : state(first, "first moment", n),
          .second_moment = second.empty() ? kNoFloats : state(second, "second moment", n),
          .parameters = copy.empty() ? kNoFloats : floats(copy, "parameters", n),
          .noise = tensors.noise};
}

enum class Moment : std::uint8_t { kNone, kFirst, kSecond, kBoth };

/// Exactly the moments that the optimizer keeps are there.
void expect_moments(const OptimizerTensors& tensors, Moment kept, std::string_view operation) {
  const bool first = kept == Moment::kFirst || kept == Moment::kBoth;
  const bool second = kept == Moment::kSecond || kept == Moment::kBoth;
  check(tensors.master.numel() == 0 ||
            (tensors.first_moment.empty() != first && tensors.second_moment.empty() != second),
        "{}: {} a first moment and {} a second one", operation, first ? "wants" : "has not",
        second ? "wants" : "has not");
}

void expect_f32_state(const OptimizerTensors& tensors, std::string_view operation) {
  for (const Tensor& tensor : {tensors.master, tensors.first_moment, tensors.second_moment}) {
    check(tensor.dtype() == DType::kF32, "{}: master and moments are f32, not {}", operation,
          name_of(tensor.dtype()));
  }
}

template <typename Step>
void run_loop(int threads,
              OptimizerLoops::Loop<Step> loop,
              const Step& step,
              const OptimizerTensors& tensors,
              Stream& stream) {
  stream.run([=, range = range_of(tensors), n = tensors.master.numel()] {
    parallel_pieces(threads, n, kPiece,
                    [&](std::int64_t begin, std::int64_t end) { loop(step, range, begin, end); });
  });
}

}  // namespace

void CpuOps::adamw(const AdamwStep& step, const OptimizerTensors& tensors, Stream& stream) {
  expect_moments(tensors, Moment::kBoth, "adamw");
  run_loop(threads_, loops_.optimizers.adamw, adamw_factors(step), tensors, stream);
}

void CpuOps::sgd(const SgdStep& step, const OptimizerTensors& tensors, Stream& stream) {
  expect_moments(tensors, step.momentum == 0.0F ? Moment::kNone : Moment::kFirst, "sgd");
  run_loop(threads_, loops_.optimizers.sgd, sgd_factors(step), tensors, stream);
}

void CpuOps::adagrad(const AdagradStep& step, const OptimizerTensors& tensors, Stream& stream) {
  expect_moments(tensors, Moment::kSecond, "adagrad");
  run_loop(threads_, loops_.optimizers.adagrad, step, tensors, stream);
}

void CpuOps::lion(const LionStep& step, const OptimizerTensors& tensors, Stream& stream) {
  expect_moments(tensors, Moment::kFirst, "lion");
  run_loop(threads_, loops_.optimizers.lion, step, tensors, stream);
}

void CpuOps::lamb_moments(const LambStep& step,
                          const OptimizerTensors& tensors,
                          Tensor squares_2,
                          Stream& stream) {
  expect_moments(tensors, Moment::kBoth, "lamb");
  expect_f32_state(tensors, "lamb");
  expect(squares_2, "lamb: squares", DType::kF64, 2);
  stream.run([=, this, range = range_of(tensors), n = tensors.master.numel()] {
    const LambFactors factors = lamb_factors(step);
    const std::int64_t blocks = (n + kPiece - 1) / kPiece;
    const auto lease = scratch_.lease(blocks * static_cast<std::int64_t>(sizeof(LambSquares)));
    auto* const sums = lease.as<LambSquares>();
    parallel_pieces(threads_, n, kPiece, [&](std::int64_t begin, std::int64_t end) {
      sums[begin / kPiece] = loops_.optimizers.lamb_moments(factors, range, begin, end);
    });
    auto* const squares = pointer<double>(squares_2);
    std::fill_n(squares, 2, 0.0);
    for (std::int64_t block = 0; block < blocks; ++block) {
      squares[0] += sums[block].parameter;
      squares[1] += sums[block].direction;
    }
  });
}

void CpuOps::lamb_apply(const LambStep& step,
                        const OptimizerTensors& tensors,
                        ConstTensor squares_2,
                        Stream& stream) {
  expect_moments(tensors, Moment::kBoth, "lamb");
  expect_f32_state(tensors, "lamb");
  expect(squares_2, "lamb: squares", DType::kF64, 2);
  stream.run([=, this, range = range_of(tensors), n = tensors.master.numel()] {
    const LambFactors factors = lamb_factors(step);
    const auto* const squares = pointer<double>(squares_2);
    const float trust_ratio = lamb_trust_ratio(step, squares[0], squares[1]);
    parallel_pieces(threads_, n, kPiece, [&](std::int64_t begin, std::int64_t end) {
      loops_.optimizers.lamb_apply(factors, trust_ratio, range, begin, end);
    });
  });
}

void CpuOps::muon_momentum(
    const MuonStep& step, ConstTensor gradient, Tensor buffer, Tensor update, Stream& stream) {
  const std::int64_t n = buffer.numel();
  expect(buffer, "muon: buffer", DType::kF32, n);
  const ConstFloats from = floats(gradient, "muon: gradient", n);
  const Floats to = floats(update, "muon: update", n);
  stream.run([=, this] {
    parallel_pieces(threads_, n, kPiece, [&](std::int64_t begin, std::int64_t end) {
      loops_.optimizers.muon_momentum(step, from, pointer<float>(buffer), to, begin, end);
    });
  });
}

void CpuOps::divide_by_norm(
    ConstTensor x, ConstTensor sum_of_squares, float epsilon, Tensor y, Stream& stream) {
  expect(y, "divide_by_norm: y", y.dtype(), x.numel());
  expect(sum_of_squares, "divide_by_norm: the sum", DType::kF64, 1);
  stream.run([=, this, threads = threads_on(stream)] {
    const auto norm = static_cast<float>(std::sqrt(*pointer<double>(sum_of_squares)));
    scale_elements(threads, x, 1.0F / (norm + epsilon), y, false);
  });
}

}  // namespace dstrain
