// Softmax cross-entropy of one row of logits: maximum, sum of exponentials, gradient in place.
// A row is taken in chunks that stay in the first-level cache between the maximum and the sum;
// earlier chunks are rescaled when the maximum grows (online softmax).
#include "kernels/cpu/vector/parts.h"
#include "kernels/cpu/vector/vec.h"

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
DSTRAIN_INLINE float sum_of_exp(const T* x, std::int64_t n, float shift) {
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

struct LogSum {
  float largest;
  float log_of_sum;  ///< log Σ exp(x - largest)
};

template <typename T>
DSTRAIN_INLINE LogSum log_sum_exp(const T* logits, std::int64_t vocabulary) {
  float largest = kLowest;
  float total = 0.0F;
  for (std::int64_t begin = 0; begin < vocabulary; begin += kChunk) {
    const std::int64_t n = vocabulary - begin < kChunk ? vocabulary - begin : kChunk;
    const float chunk_largest = max_of(logits + begin, n);
    if (chunk_largest > largest) {
      total = begin == 0 ? 0.0F : total * fast_exp(largest - chunk_largest);
      largest = chunk_largest;
    }
    total += sum_of_exp(logits + begin, n, largest);
  }
  return {largest, __builtin_logf(total)};
}

template <typename T>
[[gnu::flatten]] float cross_entropy(const T* logits,
                                     std::int64_t vocabulary,
                                     std::int32_t target) {
  const LogSum sum = log_sum_exp(logits, vocabulary);
  return sum.log_of_sum - (to_float(logits[target]) - sum.largest);
}

template <typename T>
[[gnu::flatten]] float cross_entropy_gradient(T* logits,
                                              std::int64_t vocabulary,
                                              std::int32_t target,
                                              float gradient_scale) {
  const LogSum sum = log_sum_exp(logits, vocabulary);
  const float logit = to_float(logits[target]);
  const float shift = sum.largest + sum.log_of_sum;
  for_each_vec(vocabulary, [=](std::int64_t i, auto width) {
    store(logits + i, fast_exp(load(logits + i, width) - shift) * gradient_scale, width);
  });
  assign(logits + target, (fast_exp(logit - shift) - 1.0F) * gradient_scale);
  return sum.log_of_sum - (logit - sum.largest);
}

template <typename T>
void fill(TypedLoops<T>* loops) {
  loops->cross_entropy = cross_entropy<T>;
  loops->cross_entropy_gradient = cross_entropy_gradient<T>;
}

}  // namespace

void fill_cross_entropy(VectorLoops* loops) {
  fill(&loops->f32);
  fill(&loops->bf16);
  fill(&loops->f16);
}

}  // namespace dstrain::DSTRAIN_ISA
