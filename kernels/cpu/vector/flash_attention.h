// Flash attention (Dao et al. 2022) on a CPU: tiles of 64 keys × 64 queries that stay in the
// nearest caches. Scores are kept transposed, one key a row and queries side by side in vectors,
// so that the softmax over keys needs no sums across lanes:
//   forward    Sᵀ = K Qᵀ     Oᵀ += Vᵀ Pᵀ
//   backward   Sᵀ = K Qᵀ     dPᵀ = V dOᵀ     dV += Pᵀ dO     dK += dSᵀ Q     dQᵀ += Kᵀ dSᵀ
// Tiles (FloatTiles, AmxTiles) says how an operand is packed and how two are multiplied:
// a left operand is row-major, a right operand is in the form that Tiles::multiply wants.
//
// Tiles of keys that none of a tile's queries sees are left out; the tiles in which some are hidden
// by a window or a document's border, and all where scores are capped or fall with distance or
// probabilities are dropped, take attention_reach.h.
//
// T sequence, D head dim; j tile of keys, i tile of queries (j ≤ i: causal)
#pragma once

#include "kernels/cpu/vector/attention_reach.h"

namespace dstrain::DSTRAIN_ISA {

/// result[key][query] = left[key][D] · right[D][query]. On the diagonal the square of late keys and
/// early queries is left out: nothing there is seen.
template <typename Tiles, typename E>
DSTRAIN_INLINE void keys_by_queries(
    const E* left, const E* right, std::int64_t depth, bool diagonal, float* result) {
  if (diagonal) {
    Tiles::multiply(left, depth, right, kTile, result, kTile, kHalf, kTile, depth, false);
    Tiles::multiply(left + kHalf * depth, depth, Tiles::column(right, kHalf), kTile,
                    result + kHalf * kTile + kHalf, kTile, kHalf, kHalf, depth, false);
  } else {
    Tiles::multiply(left, depth, right, kTile, result, kTile, kTile, kTile, depth, false);
  }
}

/// result[D][query] (+)= left[D][key] · right[key][query], leaving out the same square.
template <typename Tiles, typename E>
DSTRAIN_INLINE void sum_over_keys(
    const E* left, const E* right, std::int64_t depth, bool diagonal, bool add, float* result) {
  if (diagonal) {
    Tiles::multiply(left, kTile, right, kTile, result, kTile, depth, kHalf, kHalf, add);
    Tiles::multiply(left, kTile, Tiles::column(right, kHalf), kTile, result + kHalf, kTile, depth,
                    kHalf, kTile, add);
  } else {
    Tiles::multiply(left, kTile, right, kTile, result, kTile, depth, kTile, kTile, add);
  }
}

/// result[key][D] += left[key][query] · right[query][D], leaving out the same square.
template <typename Tiles, typename E>
DSTRAIN_INLINE void sum_over_queries(
    const E* left, const E* right, std::int64_t padded, bool diagonal, float* result) {
  if (diagonal) {
    Tiles::multiply(left, kTile, right, padded, result, padded, kHalf, padded, kTile, true);
    Tiles::multiply(left + kHalf * kTile + kHalf, kTile, right + kHalf * padded, padded,
                    result + kHalf * padded, padded, kHalf, padded, kHalf, true);
  } else {
    Tiles::multiply(left, kTile, right, padded, result, padded, kTile, padded, kTile, true);
  }
}

DSTRAIN_INLINE void scale_columns(float* columns, const float* factors, std::int64_t depth) {
  for (std::int64_t query = 0; query < kTile; query += kLanes) {
    const Vec factor = load(factors + query);
    for (std::int64_t d = 0; d < depth; ++d) {
      store(columns + d * kTile + query, load(columns + d * kTile + query) * factor);
    }
  }
}

/// Whether the softmax needs to know only whether a score's key is seen.
template <typename T>
DSTRAIN_INLINE bool is_plain(const AttentionTask<T>& task) {
  return task.cap == 0.0F && task.slopes == nullptr && task.dropout.threshold == 0;
}

template <typename T>
DSTRAIN_INLINE ScoreBend bend_of(const AttentionTask<T>& task,
                                 std::int64_t head,
                                 std::int64_t first_query,
                                 std::int64_t first_key) {
  const float slope = task.slopes == nullptr ? 0.0F : task.slopes[head];
  return {task.scale, task.cap, slope, first_key - first_query};
}

template <typename T>
DSTRAIN_INLINE TileDropout dropout_of(const AttentionTask<T>& task,
                                      std::int64_t head,
                                      std::int64_t first_query,
                                      std::int64_t first_key) {
  return {task.dropout, task.first_plane + static_cast<std::uint32_t>(head), first_query,
          first_key};
}

template <typename Tiles, typename T>
DSTRAIN_INLINE void flash_forward(const AttentionTask<T>& task) {
  const std::int64_t depth = task.head_dim;
  const std::int64_t tiles = (task.sequence + kTile - 1) / kTile;
  ForwardScratch<Tiles> s;
  s.carve(task.scratch, tiles, depth);
  std::int64_t packed = 0;  // tiles of keys and values packed so far
  for (std::int64_t block = task.first_block; block < task.last_block; ++block) {
    const std::int64_t head = block / tiles;
    const std::int64_t i = block % tiles;
    for (; packed <= i; ++packed) {
      const std::int64_t row = packed * kTile;
      const std::int64_t rows = task.sequence - row < kTile ? task.sequence - row : kTile;
      Tiles::rows_left(task.k + row * task.key_stride, task.key_stride, rows, depth,
                       s.k_rows + row * depth);
      Tiles::columns_left(task.v + row * task.value_stride, task.value_stride, rows, depth,
                          s.v_columns + row * depth);
    }
    const std::int64_t first = i * kTile;
    const std::int64_t queries = task.sequence - first < kTile ? task.sequence - first : kTile;
    Tiles::columns_right(task.q + first * task.query_stride + head * depth, task.query_stride,
                         queries, depth, s.q_columns);
    for (std::int64_t query = 0; query < kTile; ++query) {
      s.maximum[query] = -1.0e30F;
      s.total[query] = 0.0F;
    }
    const FirstKeys reach = find_first_keys(task, first, queries, s.first_keys);
    const std::int64_t first_tile = reach.earliest / kTile;
    for (std::int64_t j = first_tile; j <= i; ++j) {
      const bool diagonal = j == i;
      keys_by_queries<Tiles>(s.k_rows + j * kTile * depth, s.q_columns, depth, diagonal, s.scores);
      if (is_plain(task) && reach.latest <= j * kTile) {
        online_softmax(s, task.scale, diagonal);
      } else {
        online_softmax_of_seen(s, bend_of(task, head, first, j * kTile),
                               dropout_of(task, head, first, j * kTile), j * kTile, diagonal);
      }
      if (j > first_tile) {
        scale_columns(s.out_columns, s.factor, depth);
      }
      sum_over_keys<Tiles>(s.v_columns + j * kTile * depth, s.p, depth, diagonal, j > first_tile,
                           s.out_columns);
    }
    float* logsumexp = task.logsumexp_written + head * task.sequence + first;
    for (std::int64_t query = 0; query < kTile; ++query) {
      s.factor[query] = 1.0F / s.total[query];
      if (query < queries) {
        logsumexp[query] = s.maximum[query] * kLn2 + __builtin_logf(s.total[query]);
      }
    }
    rows_of(s.out_columns, s.factor, queries, depth,
            task.out_written + first * task.out_stride + head * depth, task.out_stride);
  }
}

/// delta[query] = dout · out (Dao 2023, equation 4), and the tile's logsumexp; 0 beyond the end.
template <typename Tiles, typename T>
DSTRAIN_INLINE void load_query_sums(const AttentionTask<T>& task,
                                    const BackwardScratch<Tiles>& s,
                                    std::int64_t head,
                                    std::int64_t first,
                                    std::int64_t queries) {
  for (std::int64_t query = 0; query < kTile; ++query) {
    s.logsumexp2[query] = 0.0F;
    s.delta[query] = 0.0F;
    s.factor[query] = task.scale;
  }
  for (std::int64_t query = 0; query < queries; ++query) {
    const std::int64_t at = (first + query) * task.out_stride + head * task.head_dim;
    const T* out = task.out + at;
    const T* dout = task.dout + at;
    Vec total{};
    for_each_vec(task.head_dim, [=, &total](std::int64_t d, auto width) {
      total += load(out + d, width) * load(dout + d, width);
    });
    const std::int64_t row = head * task.sequence + first + query;
    s.delta[query] = sum_lanes(total);
    s.logsumexp2[query] = task.logsumexp[row] * kLog2E;
    task.delta[row] = s.delta[query];
  }
}

template <typename T>
DSTRAIN_INLINE void write_rows(const float* rows,
                               std::int64_t padded,
                               float scale,
                               std::int64_t count,
                               std::int64_t depth,
                               T* x,
                               std::int64_t stride) {
  for (std::int64_t row = 0; row < count; ++row) {
    const float* from = rows + row * padded;
    T* to = x + row * stride;
    for_each_vec(depth, [=](std::int64_t d, auto width) {
      store(to + d, load(from + d, width) * scale, width);
    });
  }
}

template <typename Tiles, typename T>
DSTRAIN_INLINE void flash_backward(const AttentionTask<T>& task) {
  const std::int64_t depth = task.head_dim;
  const std::int64_t padded = Tiles::padded(depth);
  const std::int64_t tiles = (task.sequence + kTile - 1) / kTile;
  BackwardScratch<Tiles> s;
  s.carve(task.scratch, tiles, depth);
  for (std::int64_t j = 0; j < tiles; ++j) {
    const std::int64_t row = j * kTile;
    const std::int64_t rows = task.sequence - row < kTile ? task.sequence - row : kTile;
    const T* k = task.k + row * task.key_stride;
    Tiles::rows_left(k, task.key_stride, rows, depth, s.k_rows + row * depth);
    Tiles::columns_left(k, task.key_stride, rows, depth, s.k_columns + row * depth);
    Tiles::rows_left(task.v + row * task.value_stride, task.value_stride, rows, depth,
                     s.v_rows + row * depth);
  }
  __builtin_memset(s.dk, 0, static_cast<std::size_t>(tiles * kTile * padded) * sizeof(float));
  __builtin_memset(s.dv, 0, static_cast<std::size_t>(tiles * kTile * padded) * sizeof(float));

  for (std::int64_t block = 0; block < task.group * tiles; ++block) {
    const std::int64_t head = block / tiles;
    const std::int64_t i = block % tiles;
    const std::int64_t first = i * kTile;
    const std::int64_t queries = task.sequence - first < kTile ? task.sequence - first : kTile;
    const T* q = task.q + first * task.query_stride + head * depth;
    const T* dout = task.dout + first * task.out_stride + head * depth;
    Tiles::columns_right(q, task.query_stride, queries, depth, s.q_columns);
    Tiles::columns_right(dout, task.out_stride, queries, depth, s.dout_columns);
    Tiles::rows_right(q, task.query_stride, queries, depth, s.q_rows);
    Tiles::rows_right(dout, task.out_stride, queries, depth, s.dout_rows);
    load_query_sums(task, s, head, first, queries);
    const FirstKeys reach = find_first_keys(task, first, queries, s.first_keys);
    const std::int64_t first_tile = reach.earliest / kTile;
    for (std::int64_t j = first_tile; j <= i; ++j) {
      const bool diagonal = j == i;
      const std::int64_t at = j * kTile * depth;
      keys_by_queries<Tiles>(s.k_rows + at, s.q_columns, depth, diagonal, s.scores);
      keys_by_queries<Tiles>(s.v_rows + at, s.dout_columns, depth, diagonal, s.dp);
      if (is_plain(task) && reach.latest <= j * kTile) {
        probabilities(s, task.scale, diagonal);
      } else {
        probabilities_of_seen(s, bend_of(task, head, first, j * kTile),
                              dropout_of(task, head, first, j * kTile), j * kTile, diagonal);
      }
      sum_over_queries<Tiles>(s.p, s.dout_rows, padded, diagonal, s.dv + j * kTile * padded);
      sum_over_queries<Tiles>(s.ds, s.q_rows, padded, diagonal, s.dk + j * kTile * padded);
      sum_over_keys<Tiles>(s.k_columns + at, s.ds_right, depth, diagonal, j > first_tile,
                           s.dq_columns);
    }
    rows_of(s.dq_columns, s.factor, queries, depth, task.dq + first * task.dq_stride + head * depth,
            task.dq_stride);
  }
  write_rows(s.dk, padded, task.scale, task.sequence, depth, task.dk, task.dk_stride);
  write_rows(s.dv, padded, 1.0F, task.sequence, depth, task.dv, task.dv_stride);
}

template <typename Tiles>
DSTRAIN_INLINE std::int64_t flash_scratch_bytes(std::int64_t sequence, std::int64_t depth) {
  const std::int64_t tiles = (sequence + kTile - 1) / kTile;
  ForwardScratch<Tiles> forward;
  BackwardScratch<Tiles> backward;
  const std::uintptr_t a = forward.carve(nullptr, tiles, depth);
  const std::uintptr_t b = backward.carve(nullptr, tiles, depth);
  return static_cast<std::int64_t>(a > b ? a : b);
}

}  // namespace dstrain::DSTRAIN_ISA
