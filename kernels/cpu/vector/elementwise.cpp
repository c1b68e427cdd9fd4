// Loops over elements: addition, activations, rotation, conversion, sums. Outputs may be the very
// inputs: each step loads all it needs before it stores.
#include "kernels/cpu/vector/double_sums.h"
#include "kernels/cpu/vector/parts.h"
#include "kernels/cpu/vector/vec.h"
#include "kernels/math/activation.h"
#include "kernels/math/gated.h"

namespace dstrain::DSTRAIN_ISA {
namespace {

template <typename T>
[[gnu::flatten]] void add(const T* a, const T* b, T* y, std::int64_t n) {
  for_each_vec(n, [=](std::int64_t i, auto width) {
    store(y + i, load(a + i, width) + load(b + i, width), width);
  });
}

template <typename T>
[[gnu::flatten]] void activation_forward(ActivationKind kind, const T* x, T* y, std::int64_t n) {
  visit(kind, [=](auto act) {
    for_each_vec(
        n, [=](std::int64_t i, auto width) { store(y + i, act.value(load(x + i, width)), width); });
  });
}

template <typename T>
[[gnu::flatten]] void activation_backward(
    ActivationKind kind, const T* x, const T* dy, T* dx, std::int64_t n) {
  visit(kind, [=](auto act) {
    for_each_vec(n, [=](std::int64_t i, auto width) {
      store(dx + i, load(dy + i, width) * act.derivative(load(x + i, width)), width);
    });
  });
}

template <typename T>
[[gnu::flatten]] void gated_forward(
    GatedActivation activation, const T* gate_up, T* y, std::int64_t rows, std::int64_t width_F) {
  visit_gated(activation.kind, activation.limit, [=](auto gated) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const T* gate = gate_up + row * 2 * width_F;
      const T* up = gate + width_F;
      T* out = y + row * width_F;
      for_each_vec(width_F, [=](std::int64_t i, auto width) {
        store(out + i, gated.value(load(gate + i, width), load(up + i, width)), width);
      });
    }
  });
}

template <typename T>
[[gnu::flatten]] void gated_backward(GatedActivation activation,
                                     const T* gate_up,
                                     const T* dy,
                                     T* d_gate_up,
                                     std::int64_t rows,
                                     std::int64_t width_F) {
  visit_gated(activation.kind, activation.limit, [=](auto gated) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const T* gate = gate_up + row * 2 * width_F;
      const T* up = gate + width_F;
      const T* dout = dy + row * width_F;
      T* d_gate = d_gate_up + row * 2 * width_F;
      T* d_up = d_gate + width_F;
      for_each_vec(width_F, [=](std::int64_t i, auto width) {
        const Vec g = load(gate + i, width);
        const Vec u = load(up + i, width);
        const Vec d = load(dout + i, width);
        const auto slopes = gated.gradient(g, u, d);
        store(d_gate + i, slopes.gate, width);
        store(d_up + i, slopes.up, width);
      });
    }
  });
}

template <typename T>
[[gnu::flatten]] void rope(const RopeRows<T>& rope) {
  const std::int64_t half = rope.pairs;
  for (std::int64_t row = 0; row < rope.rows; ++row) {
    const std::int64_t position =
        rope.positions == nullptr ? (rope.first_row + row) % rope.sequence : rope.positions[row];
    const float* cosine = rope.cosine + position * half;
    const float* sine = rope.sine + position * half;
    for (std::int64_t head = 0; head < rope.heads; ++head) {
      T* first = rope.qkv + row * rope.row_stride + head * rope.head_dim;
      T* second = first + half;
      for_each_vec(half, [=, &rope](std::int64_t i, auto width) {
        const Vec a = load(first + i, width);
        const Vec b = load(second + i, width);
        const Vec c = load(cosine + i, width);
        const Vec s = load(sine + i, width) * rope.direction;
        store(first + i, a * c - b * s, width);
        store(second + i, b * c + a * s, width);
      });
    }
  }
}

template <typename T>
[[gnu::flatten]] void accumulate(const T* x, float* y, std::int64_t n) {
  for_each_vec(n, [=](std::int64_t i, auto width) {
    store(y + i, load(y + i, width) + load(x + i, width), width);
  });
}

/// Eight rows at a time: the running sums are read and written once for eight loads of x.
template <typename T>
[[gnu::flatten]] void add_column_sums(const T* x,
                                      std::int64_t rows,
                                      std::int64_t width_C,
                                      float* sums) {
  constexpr std::int64_t kRows = 8;
  std::int64_t row = 0;
  for (; row + kRows <= rows; row += kRows) {
    const T* base = x + row * width_C;
    for_each_vec(width_C, [=](std::int64_t c, auto width) {
      Vec total = load(sums + c, width);
      for (std::int64_t r = 0; r < kRows; ++r) {
        total += load(base + r * width_C + c, width);
      }
      store(sums + c, total, width);
    });
  }
  for (; row < rows; ++row) {
    accumulate(x + row * width_C, sums, width_C);
  }
}

template <typename From, typename To>
[[gnu::flatten]] void convert(const From* x, To* y, std::int64_t n) {
  for_each_vec(n, [=](std::int64_t i, auto width) { store(y + i, load(x + i, width), width); });
}

/// x and y may be the same.
template <typename From, typename To>
[[gnu::flatten]] void add_scaled(const From* x, float scale, To* y, bool adds, std::int64_t n) {
  if (adds) {
    for_each_vec(n, [=](std::int64_t i, auto width) {
      store(y + i, load(y + i, width) + scale * load(x + i, width), width);
    });
  } else {
    for_each_vec(
        n, [=](std::int64_t i, auto width) { store(y + i, scale * load(x + i, width), width); });
  }
}

template <typename T>
[[gnu::flatten]] float dot(const T* a, const T* b, std::int64_t n) {
  Vec total{};
  for_each_vec(
      n, [&](std::int64_t i, auto width) { total += load(a + i, width) * load(b + i, width); });
  return sum_lanes(total);
}

/// Four running sums of doubles, so that the additions do not wait for each other.
template <bool kSquare, typename T>
[[gnu::flatten]] double sum(const T* x, std::int64_t n) {
  constexpr int kChains = 4;
  VecDouble totals[kChains] = {};
  double total = 0.0;
  const auto add = [](VecDouble& chain, VecDouble wide) { chain += kSquare ? wide * wide : wide; };
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    for (int pair = 0; pair < 2; ++pair) {
      const Vec value = load(x + i + pair * kLanes);
      add(totals[2 * pair], widened_half<0>(value));
      add(totals[2 * pair + 1], widened_half<1>(value));
    }
  }
  for (const VecDouble& chain : totals) {
    total += sum_lanes(chain);
  }
  for (; i < n; ++i) {
    const auto wide = static_cast<double>(to_float(x[i]));
    total += kSquare ? wide * wide : wide;
  }
  return total;
}

template <typename T>
[[gnu::flatten]] void weigh(const T* x, float of_x, T* y, float of_y, std::int64_t n) {
  for_each_vec(n, [=](std::int64_t i, auto width) {
    store(y + i, load(y + i, width) * of_y + load(x + i, width) * of_x, width);
  });
}

DSTRAIN_INLINE VecBits bits_of(const float* x, float /*as*/) {
  return reinterpret_cast<VecBits>(load(x));
}
template <typename Half>
DSTRAIN_INLINE VecBits bits_of(const Half* x, Half /*as*/) {
  return widened(*reinterpret_cast<const MemoryHalf*>(x));
}
DSTRAIN_INLINE VecBits bits_of(const float* x, BF16 /*as*/) {
  return widened(round_to_bf16(load(x)));
}
DSTRAIN_INLINE VecBits bits_of(const float* x, F16 /*as*/) {
  return widened(round_to_f16(load(x)));
}

/// The same for one element.
template <typename From, typename As>
DSTRAIN_INLINE std::uint64_t bits_of_one(From x) {
  As as{};
  assign(&as, to_float(x));
  if constexpr (sizeof(As) == sizeof(float)) {
    return __builtin_bit_cast(std::uint32_t, as);
  } else {
    return as.bits;
  }
}
template <typename Half>
DSTRAIN_INLINE std::uint64_t bits_of_itself(Half x) {
  return x.bits;
}
DSTRAIN_INLINE std::uint64_t bits_of_itself(float x) {
  return __builtin_bit_cast(std::uint32_t, x);
}

/// Running sums of the elements with even and with odd numbers, a lane for each of a vector's pairs
/// of them. `later` is the sum of what `sum` has been: an element's share of it is the number of
/// vectors from its own on, so its vector's number comes without a product.
struct BitChain {
  VecPairs sum{};
  VecPairs later{};
  DSTRAIN_INLINE void add(VecPairs x) {
    sum += x;
    later += sum;
  }
  DSTRAIN_INLINE void finish(std::uint64_t vectors, std::uint64_t parity, BitSums* total) const {
    for (int pair = 0; pair < kLanes / 2; ++pair) {
      const std::uint64_t lane = 2 * static_cast<std::uint64_t>(pair) + parity;
      total->plain += sum[pair];
      total->weighted += kLanes * (vectors * sum[pair] - later[pair]) + lane * sum[pair];
    }
  }
};

template <typename From, typename As>
[[gnu::flatten]] BitSums bit_sums(const From* x, std::int64_t n) {
  BitChain even;
  BitChain odd;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto pairs = reinterpret_cast<VecPairs>(bits_of(x + i, As{}));
    even.add(pairs & 0xffffffffU);
    odd.add(pairs >> 32);
  }
  BitSums total;
  const auto vectors = static_cast<std::uint64_t>(i / kLanes);
  even.finish(vectors, 0, &total);
  odd.finish(vectors, 1, &total);
  for (; i < n; ++i) {
    std::uint64_t bits = 0;
    if constexpr (sizeof(From) == sizeof(As)) {
      bits = bits_of_itself(x[i]);
    } else {
      bits = bits_of_one<From, As>(x[i]);
    }
    total.plain += bits;
    total.weighted += static_cast<std::uint64_t>(i) * bits;
  }
  return total;
}

template <typename T>
void fill(TypedLoops<T>* loops) {
  loops->add = add<T>;
  loops->activation_forward = activation_forward<T>;
  loops->activation_backward = activation_backward<T>;
  loops->gated_forward = gated_forward<T>;
  loops->gated_backward = gated_backward<T>;
  loops->rope = rope<T>;
  loops->accumulate = accumulate<T>;
  loops->add_column_sums = add_column_sums<T>;
  loops->dot = dot<T>;
  loops->sum_of_squares = sum<true, T>;
  loops->bit_sums = bit_sums<T, T>;
  loops->bit_sums_of_cast = bit_sums<float, T>;
  loops->cast_to_f32 = convert<T, float>;
  loops->cast_to_bf16 = convert<T, BF16>;
  loops->cast_to_f16 = convert<T, F16>;
  loops->scale_to_f32 = add_scaled<T, float>;
  loops->scale_to_bf16 = add_scaled<T, BF16>;
  loops->scale_to_f16 = add_scaled<T, F16>;
  loops->weigh = weigh<T>;
}

}  // namespace

void fill_elementwise(VectorLoops* loops) {
  fill(&loops->f32);
  fill(&loops->bf16);
  fill(&loops->f16);
  loops->sum = sum<false, float>;
}

}  // namespace dstrain::DSTRAIN_ISA
