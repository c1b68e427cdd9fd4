// The optimizers: pieces of a flat range shared out over threads. No sum but LAMB's goes over the
// elements, and that one in fixed blocks.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/optimizer_operands.h"

namespace dstrain {
namespace {

/// Elements of a task: small enough to share out evenly, large enough to stream from memory.
constexpr std::int64_t kPiece = 1 << 15;

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
  expect_moments(tensors, step.momentum == 0.0 ? Moment::kNone : Moment::kFirst, "sgd");
  run_loop(threads_, loops_.optimizers.sgd, sgd_factors(step), tensors, stream);
}

void CpuOps::adagrad(const AdagradStep& step, const OptimizerTensors& tensors, Stream& stream) {
  expect_moments(tensors, Moment::kSecond, "adagrad");
  run_loop(threads_, loops_.optimizers.adagrad, step, tensors, stream);
}

void CpuOps::lion(const LionStep& step, const OptimizerTensors& tensors, Stream& stream) {
  expect_moments(tensors, Moment::kFirst, "lion");
  run_loop(threads_, loops_.optimizers.lion, lion_factors(step), tensors, stream);
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
  stream.run([=, this, factors = muon_factors(step)] {
    parallel_pieces(threads_, n, kPiece, [&](std::int64_t begin, std::int64_t end) {
      loops_.optimizers.muon_momentum(factors, from, pointer<float>(buffer), to, begin, end);
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
