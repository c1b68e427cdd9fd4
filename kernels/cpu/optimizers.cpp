// The optimizers: pieces of a flat range shared out over threads. No sums but LAMB's go over the
// elements, and those in fixed blocks.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/operation_work.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/typed.h"
#include "kernels/elementwise_operands.h"
#include "kernels/math/elementwise_optimizers.h"
#include "kernels/math/lamb.h"
#include "kernels/math/muon.h"
#include "kernels/math/one_bit_lamb.h"
#include "kernels/optimizer_operands.h"

namespace dstrain {
namespace {

/// Elements of a task: small enough to share out evenly, large enough to stream from memory.
constexpr std::int64_t kPiece = 1 << 15;

}  // namespace

void CpuOps::update(const ElementwiseStep& step, const OptimizerTensors& tensors, Stream& stream) {
  visit_update(step, tensors, [&](const char*, const auto& one, const OptimizerRange& range) {
    stream.run([=, this, factors = factors_of(one), n = tensors.master.numel()] {
      note_moved(tensors.gradient, tensors.master, tensors.master, tensors.first_moment,
                 tensors.first_moment, tensors.second_moment, tensors.second_moment,
                 tensors.parameters);
      const auto loop = loops_.optimizers.update_with(factors);
      parallel_pieces(threads_, n, kPiece, [&](std::int64_t begin, std::int64_t end) {
        loop(factors, range, begin, end);
      });
    });
  });
}

void CpuOps::lamb_moments(const LambStep& step,
                          const OptimizerTensors& tensors,
                          Tensor squares_2,
                          Stream& stream) {
  expect_lamb(tensors, squares_2);
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
  expect_lamb(tensors, squares_2);
  stream.run([=, this, range = range_of(tensors), n = tensors.master.numel()] {
    const LambFactors factors = lamb_factors(step);
    const auto* const squares = pointer<double>(squares_2);
    const float trust_ratio = lamb_trust_ratio(step, squares[0], squares[1]);
    parallel_pieces(threads_, n, kPiece, [&](std::int64_t begin, std::int64_t end) {
      loops_.optimizers.lamb_apply(factors, trust_ratio, range, begin, end);
    });
  });
}

void CpuOps::remember_trust_ratio(const LambStep& step,
                                  double beta,
                                  ConstTensor squares_2,
                                  Tensor coefficients_2,
                                  Stream& stream) {
  expect_coefficients(squares_2, coefficients_2);
  stream.run([=] {
    const auto* const squares = pointer<double>(squares_2);
    auto* const coefficients = pointer<double>(coefficients_2);
    coefficients[0] = remembered_trust_ratio(beta, coefficients[0],
                                             lamb_trust_ratio(step, squares[0], squares[1]));
  });
}

void CpuOps::one_bit_lamb_moments(const OneBitLambStep& step,
                                  const OptimizerTensors& tensors,
                                  Tensor sums_3,
                                  Stream& stream) {
  expect_one_bit_lamb(tensors, sums_3);
  stream.run([=, this, range = range_of(tensors), n = tensors.master.numel()] {
    const OneBitLambFactors factors = one_bit_lamb_factors(step);
    const std::int64_t blocks = (n + kPiece - 1) / kPiece;
    const auto lease = scratch_.lease(blocks * static_cast<std::int64_t>(sizeof(OneBitLambSums)));
    auto* const of_blocks = lease.as<OneBitLambSums>();
    parallel_pieces(threads_, n, kPiece, [&](std::int64_t begin, std::int64_t end) {
      of_blocks[begin / kPiece] =
          loops_.optimizers.one_bit_lamb_moments(factors, range, begin, end);
    });
    auto* const sums = pointer<double>(sums_3);
    std::fill_n(sums, 3, 0.0);
    for (std::int64_t block = 0; block < blocks; ++block) {
      sums[0] += of_blocks[block].update;
      sums[1] += of_blocks[block].first_term;
      sums[2] = larger_or_nan(of_blocks[block].largest_ratio, sums[2]);
    }
  });
}

void CpuOps::one_bit_lamb_apply(const OneBitLambStep& step,
                                const OptimizerTensors& tensors,
                                ConstTensor sums_3,
                                Tensor coefficients_2,
                                Stream& stream) {
  expect_one_bit_lamb(tensors, sums_3);
  expect(coefficients_2, "one_bit_lamb: coefficients", DType::kF64, 2);
  stream.run([=, this, range = range_of(tensors), n = tensors.master.numel()] {
    const OneBitLambFactors factors = one_bit_lamb_factors(step);
    const auto* const sums = pointer<double>(sums_3);
    auto* const coefficients = pointer<double>(coefficients_2);
    coefficients[1] = one_bit_lamb_factor(step, sums[0], sums[1], sums[2], coefficients[1]);
    const auto step_size =
        static_cast<float>(step.learning_rate * coefficients[0] * coefficients[1]);
    parallel_pieces(threads_, n, kPiece, [&](std::int64_t begin, std::int64_t end) {
      loops_.optimizers.one_bit_lamb_apply(factors, step_size, range, begin, end);
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
  expect_conversion(x, "divide_by_norm: x", y, "divide_by_norm: y");
  expect(sum_of_squares, "divide_by_norm: the sum", DType::kF64, 1);
  stream.run([=, this, threads = threads_on(stream)] {
    const auto norm = static_cast<float>(std::sqrt(*pointer<double>(sum_of_squares)));
    scale_elements(threads, x, 1.0F / (norm + epsilon), y, false);
  });
}

}  // namespace dstrain
