#include "engine/comm/rank_order_reduce.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace dstrain {
namespace {

struct Sum {
  template <typename T>
  static T combine(T a, T b) {
    return a + b;
  }
  static std::int32_t combine(std::int32_t a, std::int32_t b) {  // wraps, as numpy and NCCL do
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  }
};

struct Max {
  template <typename T>
  static T combine(T a, T b) {
    return (b > a || b != b) ? b : a;  // NOLINT(misc-redundant-expression): b != b is a NaN
  }
};

// The type that an element is added in, and the conversions to it and back.
template <typename T>
struct Wide {
  using Type = T;
  static T load(T value) { return value; }
  static T store(T value) { return value; }
};
template <>
struct Wide<BF16> {
  using Type = float;
  static float load(BF16 value) { return to_float(value); }
  static BF16 store(float value) { return to_bf16(value); }
};
template <>
struct Wide<F16> {
  using Type = float;
  static float load(F16 value) { return to_float(value); }
  static F16 store(float value) { return to_f16(value); }
};

template <typename T, typename Combine>
void reduce_two(const T* a, const T* b, T* out, std::int64_t elements) {
#pragma GCC ivdep  // `out` may be `a` or `b` itself, which is safe to vectorize
  for (std::int64_t i = 0; i < elements; ++i) {
    out[i] = Wide<T>::store(Combine::combine(Wide<T>::load(a[i]), Wide<T>::load(b[i])));
  }
}

// Works block by block, through a buffer that stays in the first-level cache.
template <typename T, typename Combine>
void reduce_many(std::span<const void* const> inputs, T* out, std::int64_t elements) {
  constexpr std::int64_t kBlock = 1024;
  std::array<typename Wide<T>::Type, kBlock> sum;
  for (std::int64_t begin = 0; begin < elements; begin += kBlock) {
    const auto count = static_cast<std::size_t>(std::min(kBlock, elements - begin));
    const T* first = static_cast<const T*>(inputs[0]) + begin;
    for (std::size_t i = 0; i < count; ++i) {
      sum[i] = Wide<T>::load(first[i]);
    }
    for (const void* input : inputs.subspan(1)) {
      const T* next = static_cast<const T*>(input) + begin;
      for (std::size_t i = 0; i < count; ++i) {
        sum[i] = Combine::combine(sum[i], Wide<T>::load(next[i]));
      }
    }
    for (std::size_t i = 0; i < count; ++i) {
      out[begin + static_cast<std::int64_t>(i)] = Wide<T>::store(sum[i]);
    }
  }
}

template <typename T, typename Combine>
void reduce_block(std::span<const void* const> inputs, T* out, std::int64_t elements) {
  if (inputs.size() == 2) {
    reduce_two<T, Combine>(static_cast<const T*>(inputs[0]), static_cast<const T*>(inputs[1]), out,
                           elements);
  } else {
    reduce_many<T, Combine>(inputs, out, elements);
  }
}

// Copies are made of blocks that are still in the first-level cache.
template <typename T, typename Combine>
void reduce_as(std::span<const void* const> inputs,
               T* out,
               std::int64_t elements,
               std::span<void* const> copies) {
  if (copies.empty()) {
    return reduce_block<T, Combine>(inputs, out, elements);
  }
  constexpr std::int64_t kBlock = (8 << 10) / static_cast<std::int64_t>(sizeof(T));
  std::vector<const void*> rest(inputs.begin(), inputs.end());
  for (std::int64_t begin = 0; begin < elements; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, elements - begin);
    for (std::size_t i = 0; i < rest.size(); ++i) {
      rest[i] = static_cast<const T*>(inputs[i]) + begin;
    }
    reduce_block<T, Combine>(rest, out + begin, count);
    for (void* const copy : copies) {
      std::memcpy(static_cast<T*>(copy) + begin, out + begin,
                  static_cast<std::size_t>(count) * sizeof(T));
    }
  }
}

template <typename T>
void reduce_type(std::span<const void* const> inputs,
                 void* out,
                 ReduceOp op,
                 std::int64_t elements,
                 std::span<void* const> copies) {
  if (op == ReduceOp::kSum) {
    reduce_as<T, Sum>(inputs, static_cast<T*>(out), elements, copies);
  } else {
    reduce_as<T, Max>(inputs, static_cast<T*>(out), elements, copies);
  }
}

}  // namespace

void reduce_in_rank_order(std::span<const void* const> inputs,
                          void* out,
                          DType dtype,
                          ReduceOp op,
                          std::int64_t elements,
                          std::span<void* const> copies) {
  check(!inputs.empty(), "a reduction of no inputs");
  switch (dtype) {
    case DType::kF32:
      return reduce_type<float>(inputs, out, op, elements, copies);
    case DType::kBF16:
      return reduce_type<BF16>(inputs, out, op, elements, copies);
    case DType::kF16:
      return reduce_type<F16>(inputs, out, op, elements, copies);
    case DType::kF64:
      return reduce_type<double>(inputs, out, op, elements, copies);
    case DType::kI32:
      return reduce_type<std::int32_t>(inputs, out, op, elements, copies);
    case DType::kU8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      break;
  }
  check(false, "{} cannot be reduced", name_of(dtype));
}

}  // namespace dstrain
