// Loops of the optimizers. Each step loads all it needs before it stores; the same element has the
// same bits whatever range it is updated in.
#include "kernels/cpu/vector/double_sums.h"
#include "kernels/cpu/vector/parts.h"
#include "kernels/cpu/vector/vec.h"
#include "kernels/cpu/vector/words.h"
#include "kernels/math/elementwise_optimizers.h"
#include "kernels/math/lamb.h"
#include "kernels/math/muon.h"
#include "kernels/math/one_bit_lamb.h"
#include "kernels/math/stochastic_rounding.h"

namespace dstrain::DSTRAIN_ISA {
namespace {

template <typename Width>
DSTRAIN_INLINE Vec load(ConstFloats x, std::int64_t i, Width width) {
  switch (x.format) {
    case FloatFormat::kF32:
      return load(static_cast<const float*>(x.data) + i, width);
    case FloatFormat::kBF16:
      return load(static_cast<const BF16*>(x.data) + i, width);
    case FloatFormat::kF16:
      return load(static_cast<const F16*>(x.data) + i, width);
  }
  return Vec{};
}
/// Loads zeros where there is no such tensor.
template <typename Width>
DSTRAIN_INLINE Vec load(Floats x, std::int64_t i, Width width) {
  return x.data == nullptr ? Vec{} : load(ConstFloats{x.data, x.format}, i, width);
}

template <typename Width>
DSTRAIN_INLINE void store(Floats x, std::int64_t i, Vec value, Width width) {
  switch (x.format) {
    case FloatFormat::kF32:
      store(static_cast<float*>(x.data) + i, value, width);
      return;
    case FloatFormat::kBF16:
      store(static_cast<BF16*>(x.data) + i, value, width);
      return;
    case FloatFormat::kF16:
      store(static_cast<F16*>(x.data) + i, value, width);
      return;
  }
}

/// Random words of kLanes neighbouring elements.
struct NoiseWords {
  VecBits word[4];
};
DSTRAIN_INLINE NoiseWords noise_words(const RoundingNoise& noise, std::int64_t i) {
  const auto first = static_cast<std::uint64_t>(noise.first_element + i);
  VecBits lane{};
  for (int l = 0; l < kLanes; ++l) {
    lane[l] = static_cast<std::uint32_t>(l);
  }
  const VecBits low = static_cast<std::uint32_t>(first) + lane;
  const VecBits carry = low < static_cast<std::uint32_t>(first) ? VecBits{} + 1U : VecBits{};
  NoiseWords words = {{low, static_cast<std::uint32_t>(first >> 32) + carry,
                       VecBits{} + static_cast<std::uint32_t>(noise.stream),
                       VecBits{} + static_cast<std::uint32_t>(noise.stream >> 32)}};
  philox_rounds(noise.seed, words.word);
  return words;
}

DSTRAIN_INLINE void store_upper_halves(BF16* p, VecBits bits, Whole /*width*/) {
  *reinterpret_cast<MemoryHalf*>(p) = __builtin_convertvector(bits >> 16, VecHalf);
}
DSTRAIN_INLINE void store_upper_halves(BF16* p, VecBits bits, Partial width) {
  for (int lane = 0; lane < width.count; ++lane) {
    p[lane].bits = static_cast<std::uint16_t>(bits[lane] >> 16);
  }
}

/// Returns the value as it was stored. Does nothing where there is no such tensor.
template <typename Width>
DSTRAIN_INLINE Vec store_state(Floats x, std::int64_t i, Vec value, VecBits random, Width width) {
  if (x.data == nullptr) {
    return value;
  }
  if (x.format == FloatFormat::kF32) {
    store(static_cast<float*>(x.data) + i, value, width);
    return value;
  }
  const VecBits bits = stochastic_bf16(value, random);
  store_upper_halves(static_cast<BF16*>(x.data) + i, bits, width);
  return reinterpret_cast<Vec>(bits);
}

DSTRAIN_INLINE bool is_rounded(Floats x) {
  return x.data != nullptr && x.format == FloatFormat::kBF16;
}

/// element(gradient, master, first moment, second moment), the last three in place, for all
/// elements of [begin, end).
template <typename Element>
DSTRAIN_INLINE void update_elements(const OptimizerRange& range,
                                    std::int64_t begin,
                                    std::int64_t end,
                                    Element&& element) {
  const OptimizerRange r = range;
  const bool rounds =
      is_rounded(r.master) || is_rounded(r.first_moment) || is_rounded(r.second_moment);
  for_each_vec(end - begin, [=](std::int64_t k, auto width) {
    const std::int64_t i = begin + k;
    Vec master = load(r.master, i, width);
    Vec first = load(r.first_moment, i, width);
    Vec second = load(r.second_moment, i, width);
    element(load(r.gradient, i, width), master, first, second);
    const NoiseWords noise = rounds ? noise_words(r.noise, i) : NoiseWords{};
    store_state(r.first_moment, i, first, noise.word[0], width);
    store_state(r.second_moment, i, second, noise.word[1], width);
    master = store_state(r.master, i, master, noise.word[2], width);
    if (r.parameters.data != nullptr) {
      store(r.parameters, i, master, width);
    }
  });
}

/// The same where the variance is frozen (frozen_variance.h): f32 state, of which the second moment
/// is only read; element returns the parameter.
template <typename Element>
DSTRAIN_INLINE void update_beside_frozen(const OptimizerRange& range,
                                         std::int64_t begin,
                                         std::int64_t end,
                                         Element&& element) {
  const OptimizerRange r = range;
  const auto store_f32 = [](Floats x, std::int64_t i, Vec value, auto width) {
    if (x.data != nullptr) {
      store(static_cast<float*>(x.data) + i, value, width);
    }
  };
  for_each_vec(end - begin, [=](std::int64_t k, auto width) {
    const std::int64_t i = begin + k;
    Vec master = load(r.master, i, width);
    Vec first = load(r.first_moment, i, width);
    Vec third = load(r.third_moment, i, width);
    const Vec parameter =
        element(load(r.gradient, i, width), master, first, load(r.second_moment, i, width), third);
    store_f32(r.first_moment, i, first, width);
    store_f32(r.third_moment, i, third, width);
    store_f32(r.master, i, master, width);
    if (r.parameters.data != nullptr) {
      store(r.parameters, i, parameter, width);
    }
  });
}

template <typename Factors>
[[gnu::flatten]] void update(const Factors& factors,
                             const OptimizerRange& range,
                             std::int64_t begin,
                             std::int64_t end) {
  if constexpr (kFreezesVariance<Factors>) {
    update_beside_frozen(
        range, begin, end,
        [step = factors](Vec gradient, Vec& master, Vec& first, Vec second, Vec& third) {
          return update_element(step, gradient, master, first, second, third);
        });
  } else {
    update_elements(range, begin, end,
                    [step = factors](Vec gradient, Vec& master, Vec& first, Vec& second) {
                      update_element(step, gradient, master, first, second);
                    });
  }
}

template <typename... Factors>
void fill(UpdateLoops<Factors...>* loops) {
  ((static_cast<UpdateLoop<Factors>*>(loops)->update = update<Factors>), ...);
}

DSTRAIN_INLINE void add_squares(VecDouble (&totals)[2], Vec value) {
  const VecDouble halves[2] = {widened_half<0>(value), widened_half<1>(value)};
  totals[0] += halves[0] * halves[0];
  totals[1] += halves[1] * halves[1];
}

[[gnu::flatten]] LambSquares lamb_moments(const LambFactors& factors,
                                          const OptimizerRange& range,
                                          std::int64_t begin,
                                          std::int64_t end) {
  const LambFactors step = factors;
  const auto* const master = static_cast<const float*>(range.master.data) + begin;
  auto* const m = static_cast<float*>(range.first_moment.data) + begin;
  auto* const v = static_cast<float*>(range.second_moment.data) + begin;
  const ConstFloats gradient = range.gradient;
  VecDouble parameter[2] = {};
  VecDouble direction[2] = {};
  for_each_vec(end - begin, [&](std::int64_t i, auto width) {
    const Vec master_i = load(master + i, width);
    Vec m_i = load(m + i, width);
    Vec v_i = load(v + i, width);
    lamb_moments_element(step, load(gradient, begin + i, width), m_i, v_i);
    store(m + i, m_i, width);
    store(v + i, v_i, width);
    add_squares(parameter, covered(master_i, width));
    add_squares(direction, covered(lamb_direction(step, master_i, m_i, v_i), width));
  });
  return {sum_lanes(parameter[0] + parameter[1]), sum_lanes(direction[0] + direction[1])};
}

[[gnu::flatten]] void lamb_apply(const LambFactors& factors,
                                 float trust_ratio,
                                 const OptimizerRange& range,
                                 std::int64_t begin,
                                 std::int64_t end) {
  const LambFactors step = factors;
  const float step_size = step.step_size * trust_ratio;
  const OptimizerRange r = range;
  for_each_vec(end - begin, [=](std::int64_t k, auto width) {
    const std::int64_t i = begin + k;
    const Vec old = load(r.master, i, width);
    const Vec direction =
        lamb_direction(step, old, load(r.first_moment, i, width), load(r.second_moment, i, width));
    const Vec master = old - step_size * direction;
    store(r.master, i, master, width);
    if (r.parameters.data != nullptr) {
      store(r.parameters, i, master, width);
    }
  });
}

[[gnu::flatten]] OneBitLambSums one_bit_lamb_moments(const OneBitLambFactors& factors,
                                                     const OptimizerRange& range,
                                                     std::int64_t begin,
                                                     std::int64_t end) {
  const OneBitLambFactors step = factors;
  const auto* const master = static_cast<const float*>(range.master.data) + begin;
  auto* const m = static_cast<float*>(range.first_moment.data) + begin;
  const auto* const v = static_cast<const float*>(range.second_moment.data) + begin;
  auto* const fresh = static_cast<float*>(range.third_moment.data) + begin;
  const ConstFloats gradient = range.gradient;
  VecDouble update[2] = {};
  VecDouble first_term[2] = {};
  Vec largest = {};
  for_each_vec(end - begin, [&](std::int64_t i, auto width) {
    const Vec v_i = load(v + i, width);
    Vec m_i = load(m + i, width);
    Vec fresh_i = load(fresh + i, width);
    one_bit_lamb_moments_element(step, load(gradient, begin + i, width), m_i, fresh_i);
    store(m + i, m_i, width);
    store(fresh + i, fresh_i, width);
    const OneBitLambDirection<Vec> direction =
        one_bit_lamb_direction(step, load(master + i, width), m_i, v_i);
    add_squares(update, covered(direction.update, width));
    add_squares(first_term, covered(direction.first_term, width));
    largest = larger_or_nan(covered(deviations_ratio(step, v_i, fresh_i), width), largest);
  });
  float largest_ratio = largest[0];
  for (int lane = 1; lane < kLanes; ++lane) {
    largest_ratio = larger_or_nan(static_cast<float>(largest[lane]), largest_ratio);
  }
  return {sum_lanes(update[0] + update[1]), sum_lanes(first_term[0] + first_term[1]),
          static_cast<double>(largest_ratio)};
}

[[gnu::flatten]] void one_bit_lamb_apply(const OneBitLambFactors& factors,
                                         float step_size,
                                         const OptimizerRange& range,
                                         std::int64_t begin,
                                         std::int64_t end) {
  const OneBitLambFactors step = factors;
  const OptimizerRange r = range;
  for_each_vec(end - begin, [=](std::int64_t k, auto width) {
    const std::int64_t i = begin + k;
    const Vec old = load(r.master, i, width);
    const Vec update = one_bit_lamb_direction(step, old, load(r.first_moment, i, width),
                                              load(r.second_moment, i, width))
                           .update;
    const Vec master = old - step_size * update;
    store(r.master, i, master, width);
    if (r.parameters.data != nullptr) {
      store(r.parameters, i, master, width);
    }
  });
}

[[gnu::flatten]] void muon_momentum(const MuonFactors& factors,
                                    ConstFloats gradient,
                                    float* buffer,
                                    Floats update,
                                    std::int64_t begin,
                                    std::int64_t end) {
  const MuonFactors step = factors;
  for_each_vec(end - begin, [=](std::int64_t k, auto width) {
    const std::int64_t i = begin + k;
    Vec buffer_i = load(buffer + i, width);
    store(update, i, muon_element(step, load(gradient, i, width), buffer_i), width);
    store(buffer + i, buffer_i, width);
  });
}

}  // namespace

void fill_optimizers(VectorLoops* loops) {
  OptimizerLoops& optimizers = loops->optimizers;
  fill(&optimizers.updates);
  optimizers.lamb_moments = lamb_moments;
  optimizers.lamb_apply = lamb_apply;
  optimizers.one_bit_lamb_moments = one_bit_lamb_moments;
  optimizers.one_bit_lamb_apply = one_bit_lamb_apply;
  optimizers.muon_momentum = muon_momentum;
}

}  // namespace dstrain::DSTRAIN_ISA
