// The element-wise part of attention: from a tile of scores to probabilities (forward, with the
// running maximum of the online softmax) and to the gradient of scores (backward). Scores are
// transposed, a key a row and queries side by side in vectors; keys go in pairs, because that is
// how right operands of bf16 are stored. Compiled once for tensors of every type, not inlined.
#pragma once

#include "kernels/cpu/vector/attention_scratch.h"

namespace dstrain::DSTRAIN_ISA {

constexpr float kLog2E = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;

/// The lanes of queries first_query … that may see `key`.
DSTRAIN_INLINE VecBits visible(std::int64_t key, std::int64_t first_query) {
  LaneIndex queries{};
  for (int lane = 0; lane < kLanes; ++lane) {
    queries[lane] = lane;
  }
  return reinterpret_cast<VecBits>(queries >= static_cast<std::int32_t>(key - first_query));
}

DSTRAIN_INLINE Vec keep_where(VecBits mask, Vec value) {
  return reinterpret_cast<Vec>(mask & reinterpret_cast<VecBits>(value));
}

/// The keys of a tile, as the kLanes queries from first_query on see them: below `all_seen` all
/// queries see them, below `some_seen` some, below `read` none, and keys beyond are not read.
struct KeyRange {
  std::int64_t all_seen;
  std::int64_t some_seen;
  std::int64_t read;
};
DSTRAIN_INLINE KeyRange key_range(bool diagonal, std::int64_t first_query) {
  if (diagonal) {
    return {first_query, first_query + kLanes, first_query < kHalf ? kHalf : kTile};
  }
  return {kTile, kTile, kTile};
}

/// Turns scores into probabilities relative to the running maximum (in units of log 2); factor is
/// what earlier sums must be multiplied by.
template <typename Tiles>
[[gnu::noinline]] void online_softmax(const ForwardScratch<Tiles>& s, float scale, bool diagonal) {
  const float scale2 = scale * kLog2E;
  for (std::int64_t query = 0; query < kTile; query += kLanes) {
    const float* column = s.scores + query;
    const KeyRange keys = key_range(diagonal, query);
    Vec largest[2] = {broadcast(-1.0e30F), broadcast(-1.0e30F)};
    for (std::int64_t key = 0; key < keys.all_seen; key += 2) {
      largest[0] = maximum(largest[0], load(column + key * kTile));
      largest[1] = maximum(largest[1], load(column + (key + 1) * kTile));
    }
    for (std::int64_t key = keys.all_seen; key < keys.some_seen; ++key) {
      const Vec score = load(column + key * kTile);
      largest[0] = maximum(largest[0], visible(key, query) != 0U ? score : largest[0]);
    }
    const Vec before = load(s.maximum + query);
    const Vec now = maximum(before, maximum(largest[0], largest[1]) * scale2);
    const Vec factor = fast_exp2(before - now);
    Vec total[2] = {load(s.total + query) * factor, Vec{}};
    for (std::int64_t key = 0; key < keys.all_seen; key += 2) {
      const Vec even = fast_exp2(load(column + key * kTile) * scale2 - now);
      const Vec odd = fast_exp2(load(column + (key + 1) * kTile) * scale2 - now);
      total[0] += even;
      total[1] += odd;
      Tiles::put_right(s.p, key, query, even, odd);
    }
    for (std::int64_t key = keys.all_seen; key < keys.some_seen; key += 2) {
      const Vec even =
          keep_where(visible(key, query), fast_exp2(load(column + key * kTile) * scale2 - now));
      const Vec odd = keep_where(visible(key + 1, query),
                                 fast_exp2(load(column + (key + 1) * kTile) * scale2 - now));
      total[0] += even;
      total[1] += odd;
      Tiles::put_right(s.p, key, query, even, odd);
    }
    for (std::int64_t key = keys.some_seen; key < keys.read; key += 2) {
      Tiles::put_right(s.p, key, query, Vec{}, Vec{});
    }
    store(s.maximum + query, now);
    store(s.total + query, total[0] + total[1]);
    store(s.factor + query, factor);
  }
}

/// Computes, from scores and dp, P and dS = P · (dP - delta), transposed, as operands.
template <typename Tiles>
[[gnu::noinline]] void probabilities(const BackwardScratch<Tiles>& s, float scale, bool diagonal) {
  const float scale2 = scale * kLog2E;
  for (std::int64_t query = 0; query < kTile; query += kLanes) {
    const float* column = s.scores + query;
    const float* dp = s.dp + query;
    const Vec logsumexp2 = load(s.logsumexp2 + query);
    const Vec delta = load(s.delta + query);
    const KeyRange keys = key_range(diagonal, query);
    for (std::int64_t key = 0; key < keys.all_seen; key += 2) {
      const Vec even = fast_exp2(load(column + key * kTile) * scale2 - logsumexp2);
      const Vec odd = fast_exp2(load(column + (key + 1) * kTile) * scale2 - logsumexp2);
      const Vec ds_even = even * (load(dp + key * kTile) - delta);
      const Vec ds_odd = odd * (load(dp + (key + 1) * kTile) - delta);
      Tiles::put_left(s.p, key, query, even, odd);
      Tiles::put_both(s.ds, s.ds_right, key, query, ds_even, ds_odd);
    }
    for (std::int64_t key = keys.all_seen; key < keys.some_seen; key += 2) {
      const VecBits see_even = visible(key, query);
      const VecBits see_odd = visible(key + 1, query);
      const Vec even =
          keep_where(see_even, fast_exp2(load(column + key * kTile) * scale2 - logsumexp2));
      const Vec odd =
          keep_where(see_odd, fast_exp2(load(column + (key + 1) * kTile) * scale2 - logsumexp2));
      const Vec ds_even = keep_where(see_even, even * (load(dp + key * kTile) - delta));
      const Vec ds_odd = keep_where(see_odd, odd * (load(dp + (key + 1) * kTile) - delta));
      Tiles::put_left(s.p, key, query, even, odd);
      Tiles::put_both(s.ds, s.ds_right, key, query, ds_even, ds_odd);
    }
    for (std::int64_t key = keys.some_seen; key < keys.read; key += 2) {
      Tiles::put_left(s.p, key, query, Vec{}, Vec{});
      Tiles::put_both(s.ds, s.ds_right, key, query, Vec{}, Vec{});
    }
  }
}

}  // namespace dstrain::DSTRAIN_ISA
