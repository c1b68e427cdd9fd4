// The loops of reductions, on every instruction set that this processor has, against the formulas
// of single elements.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/comm/rank_order_loops.h"
#include "kernels/core/dtype.h"

namespace dstrain {
namespace {

struct Set {
  const char* name;
  RankOrderLoops sum;
  RankOrderLoops max;
};

std::vector<Set> sets_here() {
  std::vector<Set> sets(1);
  sets[0].name = "baseline";
  baseline::fill_rank_order_loops(&sets[0].sum, &sets[0].max);
  if (__builtin_cpu_supports("x86-64-v3") != 0) {
    Set& set = sets.emplace_back();
    set.name = "avx2";
    avx2::fill_rank_order_loops(&set.sum, &set.max);
  }
  if (__builtin_cpu_supports("x86-64-v4") != 0) {
    Set& set = sets.emplace_back();
    set.name = "avx512";
    avx512::fill_rank_order_loops(&set.sum, &set.max);
  }
  return sets;
}

template <typename T>
T made_of(double value) {
  if constexpr (std::is_same_v<T, BF16>) {
    return to_bf16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, F16>) {
    return to_f16(static_cast<float>(value));
  } else if constexpr (std::is_integral_v<T>) {
    return std::isfinite(value) ? static_cast<T>(std::fmod(value, 2e9)) : T{7};
  } else {
    return static_cast<T>(value);
  }
}

/// Ordinary numbers, with all that is special in any of the types among them.
template <typename T>
std::vector<T> values(int rank, std::int64_t elements) {
  constexpr double kSpecial[] = {
      0.0,     -0.0,     INFINITY, -INFINITY, std::numeric_limits<double>::quiet_NaN(),
      0x1p-24, -0x1p-25, 3e-39,    65504.0,   65520.0,
      3e38,    1.9e9,    -1.9e9};
  std::vector<T> made;
  for (std::int64_t i = 0; i < elements; ++i) {
    const std::int64_t mixed = (i * 7919 + rank * 104729) % 2003;
    const auto special = static_cast<std::size_t>(mixed % 29);
    made.push_back(made_of<T>(special < std::size(kSpecial)
                                  ? kSpecial[special]
                                  : static_cast<double>(mixed) / 64.0 - 11.0 * rank));
  }
  return made;
}

template <typename T>
auto widened(T value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<std::int64_t>(value);
  } else if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return to_float(value);
  }
}
template <typename T, typename Wide>
T narrowed(Wide value) {
  if constexpr (std::is_same_v<T, BF16>) {
    return to_bf16(value);
  } else if constexpr (std::is_same_v<T, F16>) {
    return to_f16(value);
  } else {
    return static_cast<T>(value);
  }
}

template <typename T>
std::vector<T> expected(const std::vector<std::vector<T>>& inputs, bool is_sum) {
  std::vector<T> out;
  for (std::size_t i = 0; i < inputs[0].size(); ++i) {
    auto total = widened(inputs[0][i]);
    for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
      const auto next = widened(inputs[rank][i]);
      total = is_sum ? total + next : (next > total || next != next ? next : total);
    }
    out.push_back(narrowed<T>(total));
  }
  return out;
}

/// The same in two parts, with what is between them not rounded.
template <typename T>
std::vector<T> in_two_parts(RankOrderLoops::Loop loop,
                            const std::vector<std::vector<T>>& inputs,
                            std::size_t first) {
  const auto elements = static_cast<std::int64_t>(inputs[0].size());
  std::vector<const void*> from;
  for (const auto& input : inputs) {
    from.push_back(input.data());
  }
  using Between = std::conditional_t<sizeof(T) == 2, float, T>;
  std::vector<Between> between(inputs[0].size());
  std::vector<T> out(inputs[0].size());
  loop({.inputs = from.data(),
        .num_inputs = static_cast<std::int64_t>(first),
        .out = between.data(),
        .is_partial = true,
        .elements = elements});
  loop({.before = between.data(),
        .inputs = from.data() + first,
        .num_inputs = static_cast<std::int64_t>(from.size() - first),
        .out = out.data(),
        .elements = elements});
  return out;
}

/// A NaN is a NaN: which of two it comes from is the processor's choice.
template <typename T>
bool same(T a, T b) {
  const auto wide_a = widened(a);
  const auto wide_b = widened(b);
  return std::memcmp(&a, &b, sizeof a) == 0 || (wide_a != wide_a && wide_b != wide_b);
}

template <typename T>
void check_loop(RankOrderLoops::Loop loop, bool is_sum) {
  for (const int ranks : {1, 2, 3, 5}) {
    for (const std::int64_t elements :
         {0, 1, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1000}) {
      std::vector<std::vector<T>> inputs;
      std::vector<const void*> from;
      for (int rank = 0; rank < ranks; ++rank) {
        inputs.push_back(values<T>(rank, elements));
      }
      const std::vector<T> want = expected(inputs, is_sum);
      for (const auto& input : inputs) {
        from.push_back(input.data());
      }
      std::int64_t wrong_in_parts = 0;
      for (std::size_t first = 1; first < inputs.size(); ++first) {
        const std::vector<T> got = in_two_parts<T>(loop, inputs, first);
        for (std::size_t i = 0; i < want.size(); ++i) {
          wrong_in_parts += same(got[i], want[i]) ? 0 : 1;
        }
      }
      // Over the first input, and over all the others.
      std::vector<void*> copies;
      for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
        copies.push_back(inputs[rank].data());
      }
      loop({.inputs = from.data(),
            .num_inputs = ranks,
            .out = inputs[0].data(),
            .copies = copies.data(),
            .num_copies = static_cast<std::int64_t>(copies.size()),
            .elements = elements});
      std::int64_t wrong = 0;
      for (const auto& out : inputs) {
        for (std::size_t i = 0; i < want.size(); ++i) {
          wrong += same(out[i], want[i]) ? 0 : 1;
        }
      }
      INFO(ranks << " ranks, " << elements << " elements, " << (is_sum ? "sum" : "maximum"));
      CHECK(wrong == 0);
      CHECK(wrong_in_parts == 0);
    }
  }
}

TEST_CASE("reductions give the same bits on every instruction set, also in place", "[comm]") {
  for (const Set& set : sets_here()) {
    INFO(set.name);
    for (const bool is_sum : {true, false}) {
      const RankOrderLoops& loops = is_sum ? set.sum : set.max;
      check_loop<float>(loops.f32, is_sum);
      check_loop<BF16>(loops.bf16, is_sum);
      check_loop<F16>(loops.f16, is_sum);
      check_loop<double>(loops.f64, is_sum);
      check_loop<std::int32_t>(loops.i32, is_sum);
    }
  }
}

}  // namespace
}  // namespace dstrain
