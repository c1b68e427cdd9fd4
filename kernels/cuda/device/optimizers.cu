// The optimizers: formulas of kernels/math on packs of neighbours. Floor: the bytes of all tensors
// over the memory's bandwidth; AdamW with f32 state and a bf16 copy moves 4 + 3 · 8 + 2 bytes an
// element.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/device/block_sum.cuh"
#include "kernels/cuda/device/elementwise.cuh"
#include "kernels/cuda/device/optimizers.h"
#include "kernels/cuda/device/reduce.h"
#include "kernels/math/elementwise_optimizers.h"
#include "kernels/math/lamb.h"
#include "kernels/math/muon.h"
#include "kernels/math/one_bit_lamb.h"
#include "kernels/math/stochastic_rounding.h"

namespace dstrain::cuda {
namespace {

template <int kWidth>
__device__ void load_floats(ConstFloats from, std::int64_t i, float (&to)[kWidth]) {
  switch (from.format) {
    case FloatFormat::kF32:
      load(static_cast<const float*>(from.data) + i, to);
      return;
    case FloatFormat::kBF16:
      load(static_cast<const BF16*>(from.data) + i, to);
      return;
    case FloatFormat::kF16:
      load(static_cast<const F16*>(from.data) + i, to);
      return;
  }
}
/// Loads zeros where there is no such tensor.
template <int kWidth>
__device__ void load_floats(Floats from, std::int64_t i, float (&to)[kWidth]) {
  if (from.data != nullptr) {
    load_floats(ConstFloats{from.data, from.format}, i, to);
    return;
  }
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    to[k] = 0.0F;
  }
}

/// Stores nothing where there is no such tensor.
template <int kWidth>
__device__ void store_floats(Floats to, std::int64_t i, const float (&from)[kWidth]) {
  if (to.data == nullptr) {
    return;
  }
  switch (to.format) {
    case FloatFormat::kF32:
      store(static_cast<float*>(to.data) + i, from);
      return;
    case FloatFormat::kBF16:
      store(static_cast<BF16*>(to.data) + i, from);
      return;
    case FloatFormat::kF16:
      store(static_cast<F16*>(to.data) + i, from);
      return;
  }
}

/// Random words of kWidth neighbouring elements, [word][element]; the same as on the CPU.
template <int kWidth>
__device__ void noise_words(const RoundingNoise& noise,
                            std::int64_t i,
                            std::uint32_t (&words)[3][kWidth]) {
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    const auto element = static_cast<std::uint64_t>(noise.first_element + i + k);
    std::uint32_t counter[4] = {
        static_cast<std::uint32_t>(element), static_cast<std::uint32_t>(element >> 32),
        static_cast<std::uint32_t>(noise.stream), static_cast<std::uint32_t>(noise.stream >> 32)};
    philox_rounds(noise.seed, counter);
    words[0][k] = counter[0];
    words[1][k] = counter[1];
    words[2][k] = counter[2];
  }
}

__device__ bool is_rounded(Floats x) {
  return x.data != nullptr && x.format == FloatFormat::kBF16;
}

/// Rounds the values of a bf16 state stochastically.
template <int kWidth>
__device__ void round_state(Floats to,
                            const std::uint32_t (&random)[kWidth],
                            float (&values)[kWidth]) {
  if (is_rounded(to)) {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      values[k] = __builtin_bit_cast(float, stochastic_bf16(values[k], random[k]));
    }
  }
}

/// element(gradient, master, first moment, second moment), the last three in place.
template <typename Element>
struct Update {
  OptimizerRange range;
  Element element;

  template <int kWidth>
  __device__ void at(std::int64_t i) const {
    float gradient[kWidth];
    float master[kWidth];
    float first[kWidth];
    float second[kWidth];
    load_floats(range.gradient, i, gradient);
    load_floats(range.master, i, master);
    load_floats(range.first_moment, i, first);
    load_floats(range.second_moment, i, second);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      element(gradient[k], master[k], first[k], second[k]);
    }
    if (is_rounded(range.master) || is_rounded(range.first_moment) ||
        is_rounded(range.second_moment)) {
      std::uint32_t words[3][kWidth];
      noise_words(range.noise, i, words);
      round_state(range.first_moment, words[0], first);
      round_state(range.second_moment, words[1], second);
      round_state(range.master, words[2], master);
    }
    store_floats(range.first_moment, i, first);
    store_floats(range.second_moment, i, second);
    store_floats(range.master, i, master);
    store_floats(range.parameters, i, master);
  }
};

/// The same where the variance is frozen (frozen_variance.h): f32 state, of which the second moment
/// is only read, and parameters that may differ from the master.
template <typename Factors>
struct UpdateBesideFrozen {
  OptimizerRange range;
  Factors factors;

  template <int kWidth>
  __device__ void at(std::int64_t i) const {
    float gradient[kWidth];
    float master[kWidth];
    float first[kWidth];
    float second[kWidth];
    float third[kWidth];
    load_floats(range.gradient, i, gradient);
    load_floats(range.master, i, master);
    load_floats(range.first_moment, i, first);
    load_floats(range.second_moment, i, second);
    load_floats(range.third_moment, i, third);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      gradient[k] = update_element(factors, gradient[k], master[k], first[k], second[k], third[k]);
    }
    store_floats(range.first_moment, i, first);
    store_floats(range.third_moment, i, third);
    store_floats(range.master, i, master);
    store_floats(range.parameters, i, gradient);  // which holds the parameters by now
  }
};

/// The formula of the optimizer whose factors these are.
template <typename Factors>
struct Formula {
  Factors factors;
  __device__ void operator()(float gradient, float& master, float& first, float& second) const {
    update_element(factors, gradient, master, first, second);
  }
};

bool aligned(const OptimizerRange& range) {
  return all_aligned(range.gradient.data, range.master.data, range.first_moment.data,
                     range.second_moment.data, range.third_moment.data, range.parameters.data);
}

constexpr int kThreads = 256;
constexpr int kWarp = 32;

/// Calls take(i, width) for all elements [i, i + width) of a thread: packs, a grid apart. Which
/// element goes to which thread depends on n alone.
template <bool kAligned, typename Take>
__device__ void for_each_pack(std::int64_t n, Take&& take) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads * kPackWidth;
  for (std::int64_t i = thread * kPackWidth; i < n; i += stride) {
    if (kAligned && i + kPackWidth <= n) {
      take(i, std::integral_constant<int, kPackWidth>{});
    } else {
      for (int k = 0; k < kPackWidth && i + k < n; ++k) {
        take(i + k, std::integral_constant<int, 1>{});
      }
    }
  }
}

/// Moments, and for each block the sums of squares of old parameters and direction.
template <bool kAligned>
__global__ void lamb_moments_kernel(LambFactors step,
                                    OptimizerRange range,
                                    std::int64_t n,
                                    double* partials) {
  double of_parameters = 0.0;
  double of_direction = 0.0;
  for_each_pack<kAligned>(n, [&](std::int64_t i, auto width) {
    constexpr int kWidth = decltype(width)::value;
    float gradient[kWidth];
    float master[kWidth];
    float first[kWidth];
    float second[kWidth];
    load_floats(range.gradient, i, gradient);
    load_floats(range.master, i, master);
    load_floats(range.first_moment, i, first);
    load_floats(range.second_moment, i, second);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      lamb_moments_element(step, gradient[k], first[k], second[k]);
      const auto parameter = static_cast<double>(master[k]);
      const auto direction =
          static_cast<double>(lamb_direction(step, master[k], first[k], second[k]));
      of_parameters += parameter * parameter;
      of_direction += direction * direction;
    }
    store_floats(range.first_moment, i, first);
    store_floats(range.second_moment, i, second);
  });
  const double parameters = block_sum(of_parameters);
  const double direction = block_sum(of_direction);
  if (threadIdx.x == 0) {
    partials[2 * std::int64_t{blockIdx.x}] = parameters;
    partials[2 * std::int64_t{blockIdx.x} + 1] = direction;
  }
}

struct LambApply {
  LambStep step;
  LambFactors factors;
  const double* squares_2;
  __device__ void operator()(float /*gradient*/, float& master, float& m, float& v) const {
    const float trust_ratio = lamb_trust_ratio(step, squares_2[0], squares_2[1]);
    master = master - factors.step_size * trust_ratio * lamb_direction(factors, master, m, v);
  }
};

/// Like Update, but does not write the moments.
template <typename Element>
struct ApplyUpdate {
  OptimizerRange range;
  Element element;

  template <int kWidth>
  __device__ void at(std::int64_t i) const {
    float master[kWidth];
    float first[kWidth];
    float second[kWidth];
    load_floats(range.master, i, master);
    load_floats(range.first_moment, i, first);
    load_floats(range.second_moment, i, second);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      element(0.0F, master[k], first[k], second[k]);
    }
    store_floats(range.master, i, master);
    store_floats(range.parameters, i, master);
  }
};

/// One warp.
__global__ void remember_trust_ratio_kernel(LambStep step,
                                            double beta,
                                            const double* squares_2,
                                            double* coefficients_2) {
  if (threadIdx.x == 0) {
    coefficients_2[0] = remembered_trust_ratio(beta, coefficients_2[0],
                                               lamb_trust_ratio(step, squares_2[0], squares_2[1]));
  }
}

struct LargerOrNan {
  template <typename F>
  __device__ F operator()(F a, F b) const {
    return larger_or_nan(a, b);
  }
};

/// Moments, and for each block two sums of squares and the largest ratio, as OneBitLambSums has
/// them.
template <bool kAligned>
__global__ void one_bit_lamb_moments_kernel(OneBitLambFactors step,
                                            OptimizerRange range,
                                            std::int64_t n,
                                            double* partials) {
  double of_update = 0.0;
  double of_first_term = 0.0;
  float largest = 0.0F;
  for_each_pack<kAligned>(n, [&](std::int64_t i, auto width) {
    constexpr int kWidth = decltype(width)::value;
    float gradient[kWidth];
    float master[kWidth];
    float first[kWidth];
    float second[kWidth];
    float third[kWidth];
    load_floats(range.gradient, i, gradient);
    load_floats(range.master, i, master);
    load_floats(range.first_moment, i, first);
    load_floats(range.second_moment, i, second);
    load_floats(range.third_moment, i, third);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      one_bit_lamb_moments_element(step, gradient[k], first[k], third[k]);
      const OneBitLambDirection<float> direction =
          one_bit_lamb_direction(step, master[k], first[k], second[k]);
      const auto update = static_cast<double>(direction.update);
      const auto first_term = static_cast<double>(direction.first_term);
      of_update += update * update;
      of_first_term += first_term * first_term;
      largest = larger_or_nan(deviations_ratio(step, second[k], third[k]), largest);
    }
    store_floats(range.first_moment, i, first);
    store_floats(range.third_moment, i, third);
  });
  const double update = block_sum(of_update);
  const double first_term = block_sum(of_first_term);
  const float ratio = block_reduce(largest, 0.0F, LargerOrNan{});
  if (threadIdx.x == 0) {
    double* const of_block = partials + 3 * std::int64_t{blockIdx.x};
    of_block[0] = update;
    of_block[1] = first_term;
    of_block[2] = static_cast<double>(ratio);
  }
}

/// One block.
__global__ void one_bit_lamb_sums_kernel(const double* partials,
                                         std::int64_t blocks,
                                         double* sums_3) {
  double update = 0.0;
  double first_term = 0.0;
  double largest = 0.0;
  for (std::int64_t block = threadIdx.x; block < blocks; block += kThreads) {
    update += partials[3 * block];
    first_term += partials[3 * block + 1];
    largest = larger_or_nan(partials[3 * block + 2], largest);
  }
  update = block_sum(update);
  first_term = block_sum(first_term);
  largest = block_reduce(largest, 0.0, LargerOrNan{});
  if (threadIdx.x == 0) {
    sums_3[0] = update;
    sums_3[1] = first_term;
    sums_3[2] = largest;
  }
}

/// One warp.
__global__ void one_bit_lamb_factor_kernel(OneBitLambStep step,
                                           const double* sums_3,
                                           double* coefficients_2) {
  if (threadIdx.x == 0) {
    coefficients_2[1] =
        one_bit_lamb_factor(step, sums_3[0], sums_3[1], sums_3[2], coefficients_2[1]);
  }
}

struct OneBitLambApply {
  double learning_rate;
  OneBitLambFactors factors;
  const double* coefficients_2;
  __device__ void operator()(float /*gradient*/, float& master, float& m, float& v) const {
    const auto step_size =
        static_cast<float>(learning_rate * coefficients_2[0] * coefficients_2[1]);
    master = master - step_size * one_bit_lamb_direction(factors, master, m, v).update;
  }
};

struct Muon {
  MuonFactors step;
  ConstFloats gradient;
  float* buffer;
  Floats update;

  template <int kWidth>
  __device__ void at(std::int64_t i) const {
    float gradients[kWidth];
    float buffers[kWidth];
    load_floats(gradient, i, gradients);
    load(buffer + i, buffers);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      gradients[k] = muon_element(step, gradients[k], buffers[k]);
    }
    store_floats(update, i, gradients);
    store(buffer + i, buffers);
  }
};

}  // namespace

template <typename Step>
void update(const Launch& to,
            const char* name,
            const Step& step,
            const OptimizerRange& range,
            std::int64_t n) {
  using Factors = decltype(factors_of(step));
  if constexpr (kFreezesVariance<Factors>) {
    launch_elementwise(name, to, n, aligned(range),
                       UpdateBesideFrozen<Factors>{range, factors_of(step)});
  } else {
    launch_elementwise(name, to, n, aligned(range),
                       Update<Formula<Factors>>{range, {factors_of(step)}});
  }
}

template void update(
    const Launch&, const char*, const AdamwStep&, const OptimizerRange&, std::int64_t);
template void update(
    const Launch&, const char*, const SgdStep&, const OptimizerRange&, std::int64_t);
template void update(
    const Launch&, const char*, const AdagradStep&, const OptimizerRange&, std::int64_t);
template void update(
    const Launch&, const char*, const RmspropStep&, const OptimizerRange&, std::int64_t);
template void update(
    const Launch&, const char*, const LionStep&, const OptimizerRange&, std::int64_t);
template void update(
    const Launch&, const char*, const OneBitAdamStep&, const OptimizerRange&, std::int64_t);
template void update(
    const Launch&, const char*, const LocalStep&, const OptimizerRange&, std::int64_t);
template void update(
    const Launch&, const char*, const SyncStep&, const OptimizerRange&, std::int64_t);

std::int64_t lamb_partials(std::int64_t n) {
  return 2 * sum_blocks(n);
}

void lamb_moments(const Launch& to,
                  const LambStep& step,
                  const OptimizerRange& range,
                  std::int64_t n,
                  double* partials,
                  double* squares_2) {
  const std::int64_t blocks = sum_blocks(n);
  auto* const kernel = aligned(range) ? lamb_moments_kernel<true> : lamb_moments_kernel<false>;
  launch("lamb_moments", kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, to.stream,
         lamb_factors(step), range, n, partials);
  sum_partials(to, partials, blocks, 2, squares_2, false);
}

void lamb_apply(const Launch& to,
                const LambStep& step,
                const OptimizerRange& range,
                std::int64_t n,
                const double* squares_2) {
  launch_elementwise("lamb_apply", to, n, aligned(range),
                     ApplyUpdate<LambApply>{range, {step, lamb_factors(step), squares_2}});
}

void remember_trust_ratio(const Launch& to,
                          const LambStep& step,
                          double beta,
                          const double* squares_2,
                          double* coefficients_2) {
  launch("remember_trust_ratio", remember_trust_ratio_kernel, dim3(1), dim3(kWarp), 0, to.stream,
         step, beta, squares_2, coefficients_2);
}

std::int64_t one_bit_lamb_partials(std::int64_t n) {
  return 3 * sum_blocks(n);
}

void one_bit_lamb_moments(const Launch& to,
                          const OneBitLambStep& step,
                          const OptimizerRange& range,
                          std::int64_t n,
                          double* partials,
                          double* sums_3) {
  const std::int64_t blocks = sum_blocks(n);
  auto* const kernel =
      aligned(range) ? one_bit_lamb_moments_kernel<true> : one_bit_lamb_moments_kernel<false>;
  launch("one_bit_lamb_moments", kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0,
         to.stream, one_bit_lamb_factors(step), range, n, partials);
  launch("one_bit_lamb_moments", one_bit_lamb_sums_kernel, dim3(1), dim3(kThreads), 0, to.stream,
         partials, blocks, sums_3);
}

void one_bit_lamb_apply(const Launch& to,
                        const OneBitLambStep& step,
                        const OptimizerRange& range,
                        std::int64_t n,
                        const double* sums_3,
                        double* coefficients_2) {
  launch("one_bit_lamb_apply", one_bit_lamb_factor_kernel, dim3(1), dim3(kWarp), 0, to.stream, step,
         sums_3, coefficients_2);
  launch_elementwise("one_bit_lamb_apply", to, n, aligned(range),
                     ApplyUpdate<OneBitLambApply>{
                         range, {step.learning_rate, one_bit_lamb_factors(step), coefficients_2}});
}

void muon_momentum(const Launch& to,
                   const MuonStep& step,
                   ConstFloats gradient,
                   float* buffer,
                   Floats update,
                   std::int64_t n) {
  launch_elementwise("muon_momentum", to, n, all_aligned(gradient.data, buffer, update.data),
                     Muon{muon_factors(step), gradient, buffer, update});
}

}  // namespace dstrain::cuda
