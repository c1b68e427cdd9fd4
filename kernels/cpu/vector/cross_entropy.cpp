// Softmax cross-entropy of one row of logits: maximum and sum of exponentials, gradient in place.
// A row is taken in chunks that stay in the first-level cache between the maximum and the sum;
// earlier chunks are rescaled when the maximum grows (online softmax).
#include "kernels/cpu/vector/parts.h"
#include "kernels/cpu/vector/vec.h"
#include "kernels/math/soft_cap.h"

namespace dstrain::DSTRAIN_ISA {
namespace {

constexpr std::int64_t kChunk = 4096;
constexpr float kLowest = -__builtin_inff();

template <typename T>
DSTRAIN_INLINE float max_of(const T* x, std::int64_t n) {
  constexpr int kChains = 4;
  Vec largest[kChains];
  for (int chain = 0; chain < kChains; ++chain) {
    largest[chain] = broadcast(-3.0e38F);
  }
  std::int64_t i = 0;
  for (; i + kChains * kLanes <= n; i += kChains * kLanes) {
    for (int chain = 0; chain < kChains; ++chain) {
      largest[chain] = maximum(load(x + i + chain * kLanes), largest[chain]);
    }
  }
  for_each_vec(
      n - i,
      [=, &largest](std::int64_t k, auto width) {
        largest[0] = maximum(load(x + i + k, width), largest[0]);
      },
      -3.0e38F);
  return max_lanes(maximum(maximum(largest[0], largest[1]), maximum(largest[2], largest[3])));
}

template <typename T>
DSTRAIN_INLINE float sum_of_shifted_exp(const T* x, std::int64_t n, float shift) {
  Vec first{};
  Vec second{};
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    first += fast_exp(load(x + i) - shift);
    second += fast_exp(load(x + i + kLanes) - shift);
  }
  for_each_vec(n - i, [=, &first](std::int64_t k, auto width) {
    first += covered(fast_exp(load(x + i + k, width) - shift), width);
  });
  return sum_lanes(first + second);
}

template <typename T>
[[gnu::flatten]] ExpSum sum_of_exp(const T* logits, std::int64_t n) {
  ExpSum sum{kLowest, 0.0F};
  for (std::int64_t begin = 0; begin < n; begin += kChunk) {
    const std::int64_t count = n - begin < kChunk ? n - begin : kChunk;
    const float chunk_largest = max_of(logits + begin, count);
    if (chunk_largest > sum.largest) {
      sum.total = begin == 0 ? 0.0F : sum.total * fast_exp(sum.largest - chunk_largest);
      sum.largest = chunk_largest;
    }
    sum.total += sum_of_shifted_exp(logits + begin, count, sum.largest);
  }
  return sum;
}

template <typename T>
[[gnu::flatten]] void cross_entropy_gradient(T* logits,
                                             std::int64_t n,
                                             std::int64_t target,
                                             float logsumexp,
                                             float gradient_scale,
                                             float cap) {
  const bool has_target = 0 <= target && target < n;
  const float logit = has_target ? to_float(logits[target]) : 0.0F;
  if (cap > 0.0F) {
    for_each_vec(n, [=](std::int64_t i, auto width) {
      const Vec capped = load(logits + i, width);
      const Vec slope = soft_cap_slope(capped, cap) * gradient_scale;
      store(logits + i, fast_exp(capped - logsumexp) * slope, width);
    });
  } else {
    for_each_vec(n, [=](std::int64_t i, auto width) {
      store(logits + i, fast_exp(load(logits + i, width) - logsumexp) * gradient_scale, width);
    });
  }
  if (has_target) {
    const float slope = cap > 0.0F ? soft_cap_slope(logit, cap) * gradient_scale : gradient_scale;
    assign(logits + target, (fast_exp(logit - logsumexp) - 1.0F) * slope);
  }
}

template <typename T>
[[gnu::flatten]] void soft_cap_of_all(T* x, float cap, std::int64_t n) {
  for_each_vec(n, [=](std::int64_t i, auto width) {
    store(x + i, soft_cap(load(x + i, width), cap), width);
  });
}

template <typename T>
void fill(TypedLoops<T>* loops) {
  loops->sum_of_exp = sum_of_exp<T>;
  loops->cross_entropy_gradient = cross_entropy_gradient<T>;
  loops->soft_cap = soft_cap_of_all<T>;
}

}  // namespace

void fill_cross_entropy(VectorLoops* loops) {
  fill(&loops->f32);
  fill(&loops->bf16);
  fill(&loops->f16);
}

}  // namespace dstrain::DSTRAIN_ISA
