#include "engine/comm/rank_order_loops.h"

#include "kernels/cpu/vector/vec.h"

namespace dstrain::DSTRAIN_ISA {
namespace {

struct Sum {
  template <typename V>
  DSTRAIN_INLINE static V combine(V a, V b) {
    return a + b;
  }
};

struct Max {
  template <typename V>
  DSTRAIN_INLINE static V combine(V a, V b) {
    const V larger = b > a ? b : a;
    return b != b ? b : larger;  // NOLINT(misc-redundant-expression): b != b is a NaN
  }
};

// Elements of T as they are combined, a register or one element at a time: bf16 and f16 in f32, i32
// for a sum without its sign, so that it wraps.
template <typename T, typename Op>
struct Wide {
  using Element = float;
  using Register = Vec;
  DSTRAIN_INLINE static Register load_all(const T* p) { return load(p); }
  DSTRAIN_INLINE static void store_all(T* p, Register value) { store(p, value); }
  DSTRAIN_INLINE static float load_one(const T* p) { return to_float(*p); }
  DSTRAIN_INLINE static void store_one(T* p, float value) { assign(p, value); }
};
template <typename T>
struct WideAsItIs {
  using Element = T;
  typedef T Register __attribute__((vector_size(4 * kLanes)));
  typedef T MemoryRegister __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
  DSTRAIN_INLINE static Register load_all(const T* p) {
    return *reinterpret_cast<const MemoryRegister*>(p);
  }
  DSTRAIN_INLINE static void store_all(T* p, Register value) {
    *reinterpret_cast<MemoryRegister*>(p) = value;
  }
  DSTRAIN_INLINE static T load_one(const T* p) { return *p; }
  DSTRAIN_INLINE static void store_one(T* p, T value) { *p = value; }
};
template <typename Op>
struct Wide<double, Op> : WideAsItIs<double> {};
template <typename Op>
struct Wide<std::int32_t, Op> : WideAsItIs<std::int32_t> {};
template <typename Op>
struct Wide<std::uint32_t, Op> : WideAsItIs<std::uint32_t> {};

/// Everything is read before anything is written, in steps of some registers and then of elements.
template <typename T, typename Op>
void reduce(const RankOrder& what) {
  using W = Wide<T, Op>;
  using Element = typename W::Element;
  using Partial = Wide<Element, Op>;
  constexpr int kRegisters = 4;
  constexpr int kInRegister = sizeof(typename W::Register) / sizeof(Element);
  constexpr int kStep = kRegisters * kInRegister;
  const auto* const before = static_cast<const Element*>(what.before);
  std::int64_t i = 0;
  for (; i + kStep <= what.elements; i += kStep) {
    typename W::Register total[kRegisters];
    const T* const first = static_cast<const T*>(what.inputs[0]) + i;
    for (int k = 0; k < kRegisters; ++k) {
      total[k] = W::load_all(first + k * kInRegister);
      if (before != nullptr) {
        total[k] = Op::combine(Partial::load_all(before + i + k * kInRegister), total[k]);
      }
    }
    for (std::int64_t input = 1; input < what.num_inputs; ++input) {
      const T* const next = static_cast<const T*>(what.inputs[input]) + i;
      for (int k = 0; k < kRegisters; ++k) {
        total[k] = Op::combine(total[k], W::load_all(next + k * kInRegister));
      }
    }
    for (int k = 0; k < kRegisters; ++k) {
      const std::int64_t at = i + k * kInRegister;
      if (what.is_partial) {
        Partial::store_all(static_cast<Element*>(what.out) + at, total[k]);
      } else {
        W::store_all(static_cast<T*>(what.out) + at, total[k]);
      }
    }
    for (std::int64_t copy = 0; copy < what.num_copies; ++copy) {
      for (int k = 0; k < kRegisters; ++k) {
        W::store_all(static_cast<T*>(what.copies[copy]) + i + k * kInRegister, total[k]);
      }
    }
  }
  for (; i < what.elements; ++i) {
    auto total = W::load_one(static_cast<const T*>(what.inputs[0]) + i);
    if (before != nullptr) total = Op::combine(before[i], total);
    for (std::int64_t input = 1; input < what.num_inputs; ++input) {
      total = Op::combine(total, W::load_one(static_cast<const T*>(what.inputs[input]) + i));
    }
    if (what.is_partial) {
      static_cast<Element*>(what.out)[i] = total;
    } else {
      W::store_one(static_cast<T*>(what.out) + i, total);
    }
    for (std::int64_t copy = 0; copy < what.num_copies; ++copy) {
      W::store_one(static_cast<T*>(what.copies[copy]) + i, total);
    }
  }
}

template <typename Op, typename Int32>
DSTRAIN_INLINE void fill(RankOrderLoops* loops) {
  loops->f32 = reduce<float, Op>;
  loops->bf16 = reduce<BF16, Op>;
  loops->f16 = reduce<F16, Op>;
  loops->f64 = reduce<double, Op>;
  loops->i32 = reduce<Int32, Op>;
}

}  // namespace

void fill_rank_order_loops(RankOrderLoops* sum, RankOrderLoops* max) {
  fill<Sum, std::uint32_t>(sum);
  fill<Max, std::int32_t>(max);
}

}  // namespace dstrain::DSTRAIN_ISA
