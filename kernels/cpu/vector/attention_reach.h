// Attention through windows, within documents, over keys that begin or end anywhere, with scores
// that are capped or fall with distance, and with dropout: which keys a tile's queries see, and the
// element-wise part of the tiles in which keys are hidden otherwise than by the diagonal, scores
// are bent or probabilities dropped. Other tiles take attention_softmax.h, which need not look.
#pragma once

#include "kernels/cpu/vector/attention_softmax.h"
#include "kernels/cpu/vector/dropout.h"
#include "kernels/math/vector_math.h"

namespace dstrain::DSTRAIN_ISA {

/// What a tile's queries see of the keys: each its neighbours [first_keys, end_keys), which neither
/// begin nor end before those of the query before it, and which are none where end ≤ first.
struct TileReach {
  std::int64_t own;         ///< position of the first query among the keys; may be negative
  std::int64_t latest;      ///< the first key of the last query
  std::int64_t first_tile;  ///< of keys that a query sees some of
  std::int64_t end_tile;
  std::int64_t queries;
  std::int64_t keys;

  /// Whether query i sees key i of tile j and those before it, and has nothing else to look at.
  [[nodiscard]] DSTRAIN_INLINE bool is_diagonal(std::int64_t j) const {
    return own == j * kTile && j * kTile + queries <= keys;
  }
  /// Whether no key of tile j is hidden, but for those after the query on the diagonal.
  [[nodiscard]] DSTRAIN_INLINE bool sees_all(std::int64_t j) const {
    const bool is_before = (j + 1) * kTile <= keys && (j + 1) * kTile <= own + 1;
    return latest <= j * kTile && (is_before || is_diagonal(j));
  }
};

/// Fills first_keys and end_keys for the `queries` queries from `first` on, and the tile's rest
/// with those of the last.
template <typename T>
DSTRAIN_INLINE TileReach find_reach(const AttentionTask<T>& task,
                                    std::int64_t first,
                                    std::int64_t queries,
                                    std::int32_t* first_keys,
                                    std::int32_t* end_keys) {
  for (std::int64_t query = 0; query < kTile; ++query) {
    const std::int64_t t = first + (query < queries ? query : queries - 1);
    const std::int64_t own = task.first_position + t;
    std::int64_t begin = task.window == 0 || own < task.window ? 0 : own + 1 - task.window;
    if (task.document_positions != nullptr && own - task.document_positions[t] > begin) {
      begin = own - task.document_positions[t];
    }
    const std::int64_t end = own + 1 < task.keys ? own + 1 : task.keys;
    first_keys[query] = static_cast<std::int32_t>(begin);
    end_keys[query] = static_cast<std::int32_t>(end);
  }
  const std::int64_t earliest = first_keys[0];
  const std::int64_t end = end_keys[kTile - 1];
  const std::int64_t first_tile = earliest / kTile;
  return {.own = task.first_position + first,
          .latest = first_keys[kTile - 1],
          .first_tile = first_tile,
          .end_tile = end > earliest ? (end + kTile - 1) / kTile : first_tile,
          .queries = queries,
          .keys = task.keys};
}

/// What the queries side by side in a vector see.
class SeenLanes {
 public:
  template <typename Scratch>
  DSTRAIN_INLINE SeenLanes(const Scratch& s, std::int64_t first_query)
      : begin_(at(s.first_keys + first_query)), end_(at(s.end_keys + first_query)) {}
  /// The lanes that see `key`.
  [[nodiscard]] DSTRAIN_INLINE VecBits see(std::int64_t key) const {
    const auto position = static_cast<std::int32_t>(key);
    return reinterpret_cast<VecBits>(begin_ <= position) &
           reinterpret_cast<VecBits>(end_ > position);
  }

 private:
  using LoadedIndex [[gnu::may_alias]] = LaneIndex;
  DSTRAIN_INLINE static LaneIndex at(const std::int32_t* keys) {
    return *reinterpret_cast<const LoadedIndex*>(keys);
  }

  LaneIndex begin_;
  LaneIndex end_;
};

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

/// The dropout of a tile's probabilities, key by key, from its first key on. Queries and keys are
/// counted from the beginning of the sample.
class TileDropout {
 public:
  DSTRAIN_INLINE TileDropout(const SampleDropout& dropout,
                             std::uint32_t plane,
                             std::int64_t first_query,
                             std::int64_t first_key)
      : dropout_(dropout),
        plane_(plane),
        first_query_(static_cast<std::uint32_t>(first_query)),
        first_key_(static_cast<std::uint32_t>(first_key)) {}

  /// Called before each `key` of the queries from `query` on, in order.
  DSTRAIN_INLINE void come_to(std::int64_t key, std::int64_t query) {
    if (drops() && (key == 0 || along(key) == 0)) {
      factors_.fill(dropout_, plane_, (first_key_ + static_cast<std::uint32_t>(key)) / kAlong,
                    first_query_ + static_cast<std::uint32_t>(query));
    }
  }
  [[nodiscard]] DSTRAIN_INLINE Vec kept(Vec value, std::int64_t key) const {
    return drops() ? value * factors_.along[along(key)] : value;
  }

 private:
  static constexpr std::uint32_t kAlong = kDropoutAlong;
  [[nodiscard]] DSTRAIN_INLINE bool drops() const { return dropout_.threshold > 0; }
  [[nodiscard]] DSTRAIN_INLINE std::uint32_t along(std::int64_t key) const {
    return (first_key_ + static_cast<std::uint32_t>(key)) % kAlong;
  }

  SampleDropout dropout_;
  std::uint32_t plane_;
  std::uint32_t first_query_;
  std::uint32_t first_key_;
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
    const SeenLanes lanes(s, query);
    Vec largest = broadcast(-1.0e30F);
    for (std::int64_t key = 0; key < keys; ++key) {
      const Vec score = bend.value(load(column + key * kTile), key, query);
      store(column + key * kTile, score);
      const VecBits seen = lanes.see(first_key + key);
      largest = maximum(largest, seen != 0U ? score : largest);
    }
    const Vec before = load(s.maximum + query);
    const Vec now = maximum(before, largest);
    const Vec factor = fast_exp2(before - now);
    Vec total = load(s.total + query) * factor;
    const auto probability = [&](std::int64_t key, Vec& kept) {
      const Vec p =
          keep_where(lanes.see(first_key + key), fast_exp2(load(column + key * kTile) - now));
      dropout.come_to(key, query);
      kept = dropout.kept(p, key);
      return p;
    };
    for (std::int64_t key = 0; key < keys; key += 2) {
      Vec even;
      Vec odd;
      const Vec of_even = probability(key, even);
      const Vec of_odd = probability(key + 1, odd);
      total += of_even + of_odd;
      Tiles::put_right(s.p, key, query, even, odd);
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
    const SeenLanes lanes(s, query);
    const auto pair = [&](std::int64_t key, Vec& p, Vec& ds) {
      const VecBits seen = lanes.see(first_key + key);
      dropout.come_to(key, query);
      const Vec score = bend.value(load(column + key * kTile), key, query);
      p = keep_where(seen, fast_exp2(score - logsumexp2));
      ds = p * (dropout.kept(load(dp + key * kTile), key) - delta) * bend.slope(score);
      ds = keep_where(seen, ds);
      p = dropout.kept(p, key);
    };
    for (std::int64_t key = 0; key < keys; key += 2) {
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
