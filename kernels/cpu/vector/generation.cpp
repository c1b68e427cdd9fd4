// Operations on one token at a time: the products and the attention of generation. They read each
// weight and each cached key and value once and do little with them, so memory sets their pace;
// sums are added in an order that depends on sizes alone.
#include "kernels/cpu/vector/attention_softmax.h"
#include "kernels/cpu/vector/parts.h"
#include "kernels/cpu/vector/vec.h"

namespace dstrain::DSTRAIN_ISA {
namespace {

template <typename A, typename B>
DSTRAIN_INLINE float dot(const A* a, const B* b, std::int64_t n) {
  Vec sums[2] = {};
  for_each_vec_pair(n, [=, &sums](std::int64_t i, auto width, int chain) {
    sums[chain] += load(a + i, width) * load(b + i, width);
  });
  return sum_lanes(sums[0] + sums[1]);
}

// One row after the other, so that w is read as one stream: of several rows at once, which would
// share what they load of x, prefetchers lose track, and memory gives a third of its rate.
template <typename T>
[[gnu::flatten]] void row_products(const float* x,
                                   const T* w,
                                   const T* bias,
                                   std::int64_t inputs_I,
                                   std::int64_t outputs_O,
                                   float* y) {
  for (std::int64_t o = 0; o < outputs_O; ++o) {
    y[o] = dot(x, w + o * inputs_I, inputs_I);
  }
  if (bias != nullptr) {
    for_each_vec(outputs_O, [=](std::int64_t at, auto width) {
      store(y + at, load(y + at, width) + load(bias + at, width), width);
    });
  }
}

/// What the scores of a head lose from one position to the one before.
template <typename T>
DSTRAIN_INLINE float slope_of(const QueryAttention<T>& task, std::int64_t head) {
  return task.slopes == nullptr ? 0.0F : task.slopes[head];
}

struct Exponentials {
  float largest2;  ///< the largest score, times log2(e)
  float total;
};
/// scores[p] = exp(score - largest), with the score of q · k[p], and their sum.
template <typename T>
DSTRAIN_INLINE Exponentials exponentials(const QueryAttention<T>& task, const T* q, float slope) {
  const bool is_bent = task.cap > 0.0F || slope != 0.0F;
  float largest = -1.0e30F;
  for (std::int64_t p = 0; p < task.keys; ++p) {
    float score = dot(q, task.k + p * task.key_stride, task.head_dim);
    if (task.cap > 0.0F) {
      score = task.cap * fast_tanh(score * task.scale / task.cap);
    } else if (slope != 0.0F) {
      score = score * task.scale - slope * static_cast<float>(task.distance - p);
    }
    task.scores[p] = score;
    largest = score > largest ? score : largest;
  }
  const float scale2 = (is_bent ? 1.0F : task.scale) * kLog2E;
  const float largest2 = largest * scale2;
  float* const scores = task.scores;
  Vec total{};
  for_each_vec(task.keys, [=, &total](std::int64_t p, auto width) {
    const Vec value = fast_exp2(load(scores + p, width) * scale2 - largest2);
    store(scores + p, value, width);
    total += covered(value, width);
  });
  return {largest2, sum_lanes(total)};
}

/// kVecs vectors of out from column d on; the sums stay in registers.
template <int kVecs, typename T, typename Width>
DSTRAIN_INLINE void weighted_values(
    const QueryAttention<T>& task, std::int64_t d, Width width, float factor, T* out) {
  Vec sums[kVecs] = {};
  const T* v = task.v + d;
  for (std::int64_t p = 0; p < task.keys; ++p, v += task.value_stride) {
    const float weight = task.scores[p];
#pragma GCC unroll 4
    for (int vec = 0; vec < kVecs; ++vec) {
      sums[vec] += weight * load(v + vec * kLanes, width);
    }
  }
  for (int vec = 0; vec < kVecs; ++vec) {
    store(out + d + vec * kLanes, sums[vec] * factor, width);
  }
}

template <typename T>
[[gnu::flatten]] void query_attention(const QueryAttention<T>& task) {
  constexpr int kVecs = 4;
  for (std::int64_t head = 0; head < task.group; ++head) {
    const Exponentials of_keys =
        exponentials(task, task.q + head * task.head_dim, slope_of(task, head));
    const float factor = 1.0F / of_keys.total;
    T* const out = task.out_written + head * task.head_dim;
    std::int64_t d = 0;
    for (; d + kVecs * kLanes <= task.head_dim; d += kVecs * kLanes) {
      weighted_values<kVecs>(task, d, Whole{}, factor, out);
    }
    for_each_vec(task.head_dim - d, [=, &task](std::int64_t more, auto width) {
      weighted_values<1>(task, d + more, width, factor, out);
    });
    if (task.logsumexp_written != nullptr) {
      task.logsumexp_written[head * task.sums_stride] =
          of_keys.largest2 * kLn2 + __builtin_logf(of_keys.total);
    }
  }
}

template <typename T>
void fill(TypedLoops<T>* loops) {
  loops->row_products = row_products<T>;
  loops->query_attention = query_attention<T>;
}

}  // namespace

void fill_generation(VectorLoops* loops) {
  fill(&loops->f32);
  fill(&loops->bf16);
  fill(&loops->f16);
}

}  // namespace dstrain::DSTRAIN_ISA
