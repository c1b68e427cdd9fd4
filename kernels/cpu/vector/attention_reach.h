// Attention through windows, within documents, with scores that are capped or fall with distance,
// and with dropout: which keys a tile's queries see, and the element-wise part of the tiles in
// which some key is hidden from a query that comes after it, scores are bent or probabilities
// dropped. Other tiles take attention_softmax.h, which need not look.
#pragma once

#include "kernels/cpu/vector/attention_softmax.h"
#include "kernels/cpu/vector/dropout.h"
#include "kernels/math/vector_math.h"

namespace dstrain::DSTRAIN_ISA {

/// The first keys that the first and the last of a tile's queries see; those between lie between.
struct FirstKeys {
  std::int64_t earliest;
  std::int64_t latest;
};

/// Fills first_keys for the `queries` queries from `first` on, and the tile's rest with the last.
template <typename T>
DSTRAIN_INLINE FirstKeys find_first_keys(const AttentionTask<T>& task,
                                         std::int64_t first,
                                         std::int64_t queries,
                                         std::int32_t* first_keys) {
  if (task.window == 0 && task.document_positions == nullptr) {
    __builtin_memset(first_keys, 0, kTile * sizeof(std::int32_t));
    return {0, 0};
  }
  for (std::int64_t query = 0; query < kTile; ++query) {
    const std::int64_t own = first + (query < queries ? query : queries - 1);
    const std::int64_t of_window =
        task.window == 0 || own < task.window ? 0 : own + 1 - task.window;
    const std::int64_t of_document =
        task.document_positions == nullptr ? 0 : own - task.document_positions[own];
    first_keys[query] =
        static_cast<std::int32_t>(of_document > of_window ? of_document : of_window);
  }
  return {first_keys[0], first_keys[kTile - 1]};
}

/// The lanes of queries first_query … that see `key` of the tile that begins at `first_key`.
DSTRAIN_INLINE VecBits sees(const std::int32_t* first_keys,
                            std::int64_t first_query,
                            std::int64_t first_key,
                            std::int64_t key,
                            bool diagonal) {
  using LoadedIndex [[gnu::may_alias]] = LaneIndex;
  const auto earliest = *reinterpret_cast<const LoadedIndex*>(first_keys + first_query);
  const auto seen =
      reinterpret_cast<VecBits>(earliest <= static_cast<std::int32_t>(first_key + key));
  return diagonal ? seen & visible(key, first_query) : seen;
}

/// Scores of a tile as the softmax takes them, in units of log 2: after their cap, or less what
/// they lose with distance.
struct ScoreBend {
  float scale;         ///< of q · k, in units of the cap or of log 2
  float largest;       ///< the cap, in units of log 2; 0: none
  float fall;          ///< from one position to the one before, in units of log 2
  std::int64_t ahead;  ///< how far the tile's first key is after its first query

  DSTRAIN_INLINE ScoreBend(float of_product, float cap, float slope, std::int64_t first_ahead)
      : scale(cap > 0.0F ? of_product / cap : of_product * kLog2E),
        largest(cap * kLog2E),
        fall(slope * kLog2E),
        ahead(first_ahead) {}
  /// Of the queries from `query` on and one key.
  [[nodiscard]] DSTRAIN_INLINE Vec value(Vec product, std::int64_t key, std::int64_t query) const {
    if (largest > 0.0F) {
      return fast_tanh(product * scale) * largest;
    }
    if (fall == 0.0F) {
      return product * scale;
    }
    Vec lanes{};
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = static_cast<float>(lane);
    }
    return product * scale + (static_cast<float>(ahead + key - query) - lanes) * fall;
  }
  /// The derivative of a score by its product, relative to one without a cap.
  [[nodiscard]] DSTRAIN_INLINE Vec slope(Vec value) const {
    const Vec bent = value * (largest > 0.0F ? 1.0F / largest : 0.0F);
    return 1.0F - bent * bent;
  }
};

/// The dropout of a tile's probabilities, key by key, from its first key on.
class TileDropout {
 public:
  DSTRAIN_INLINE TileDropout(const SampleDropout& dropout,
                             std::uint32_t plane,
                             std::int64_t first_query,
                             std::int64_t first_key)
      : dropout_(dropout),
        plane_(plane),
        first_query_(static_cast<std::uint32_t>(first_query)),
        first_block_(static_cast<std::uint32_t>(first_key / kDropoutAlong)) {}

  /// Called before `key` of the queries from `query` on.
  DSTRAIN_INLINE void come_to(std::int64_t key, std::int64_t query) {
    if (drops() && key % kDropoutAlong == 0) {
      factors_.fill(dropout_, plane_,
                    first_block_ + static_cast<std::uint32_t>(key / kDropoutAlong),
                    first_query_ + static_cast<std::uint32_t>(query));
    }
  }
  [[nodiscard]] DSTRAIN_INLINE Vec kept(Vec value, std::int64_t key) const {
    return drops() ? value * factors_.along[key % kDropoutAlong] : value;
  }

 private:
  [[nodiscard]] DSTRAIN_INLINE bool drops() const { return dropout_.threshold > 0; }

  SampleDropout dropout_;
  std::uint32_t plane_;
  std::uint32_t first_query_;
  std::uint32_t first_block_;
  DropoutFactors factors_;
};

/// Does what online_softmax does.
template <typename Tiles>
[[gnu::noinline]] void online_softmax_of_seen(const ForwardScratch<Tiles>& s,
                                              const ScoreBend& bend,
                                              TileDropout dropout,
                                              std::int64_t first_key,
                                              bool diagonal) {
  for (std::int64_t query = 0; query < kTile; query += kLanes) {
    float* column = s.scores + query;
    const std::int64_t keys = diagonal && query < kHalf ? kHalf : kTile;  // beyond, nobody looks
    Vec largest = broadcast(-1.0e30F);
    for (std::int64_t key = 0; key < keys; ++key) {
      const Vec score = bend.value(load(column + key * kTile), key, query);
      store(column + key * kTile, score);
      const VecBits seen = sees(s.first_keys, query, first_key, key, diagonal);
      largest = maximum(largest, seen != 0U ? score : largest);
    }
    const Vec before = load(s.maximum + query);
    const Vec now = maximum(before, largest);
    const Vec factor = fast_exp2(before - now);
    Vec total = load(s.total + query) * factor;
    for (std::int64_t key = 0; key < keys; key += 2) {
      dropout.come_to(key, query);
      const Vec even = keep_where(sees(s.first_keys, query, first_key, key, diagonal),
                                  fast_exp2(load(column + key * kTile) - now));
      const Vec odd = keep_where(sees(s.first_keys, query, first_key, key + 1, diagonal),
                                 fast_exp2(load(column + (key + 1) * kTile) - now));
      total += even + odd;
      Tiles::put_right(s.p, key, query, dropout.kept(even, key), dropout.kept(odd, key + 1));
    }
    store(s.maximum + query, now);
    store(s.total + query, total);
    store(s.factor + query, factor);
  }
}

/// Does what probabilities does.
template <typename Tiles>
[[gnu::noinline]] void probabilities_of_seen(const BackwardScratch<Tiles>& s,
                                             const ScoreBend& bend,
                                             TileDropout dropout,
                                             std::int64_t first_key,
                                             bool diagonal) {
  for (std::int64_t query = 0; query < kTile; query += kLanes) {
    const float* column = s.scores + query;
    const float* dp = s.dp + query;
    const Vec logsumexp2 = load(s.logsumexp2 + query);
    const Vec delta = load(s.delta + query);
    const std::int64_t keys = diagonal && query < kHalf ? kHalf : kTile;
    const auto pair = [&](std::int64_t key, Vec& p, Vec& ds) {
      const VecBits seen = sees(s.first_keys, query, first_key, key, diagonal);
      const Vec score = bend.value(load(column + key * kTile), key, query);
      p = keep_where(seen, fast_exp2(score - logsumexp2));
      ds = p * (dropout.kept(load(dp + key * kTile), key) - delta) * bend.slope(score);
      ds = keep_where(seen, ds);
      p = dropout.kept(p, key);
    };
    for (std::int64_t key = 0; key < keys; key += 2) {
      dropout.come_to(key, query);
      Vec even;
      Vec odd;
      Vec ds_even;
      Vec ds_odd;
      pair(key, even, ds_even);
      pair(key + 1, odd, ds_odd);
      Tiles::put_left(s.p, key, query, even, odd);
      Tiles::put_both(s.ds, s.ds_right, key, query, ds_even, ds_odd);
    }
  }
}

}  // namespace dstrain::DSTRAIN_ISA
