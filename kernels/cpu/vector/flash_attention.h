// Flash attention (Dao et al. 2022) on a CPU: tiles of 64 keys × 64 queries that stay in the
// nearest caches. Scores are kept transposed, one key a row and queries side by side in vectors,
// so that the softmax over keys needs no sums across lanes:
//   forward    Sᵀ = K Qᵀ     Oᵀ += Vᵀ Pᵀ
//   backward   Sᵀ = K Qᵀ     dPᵀ = V dOᵀ     dV += Pᵀ dO     dK += dSᵀ Q     dQᵀ += Kᵀ dSᵀ
// Tiles (FloatTiles, AmxTiles) says how an operand is packed and how two are multiplied:
// a left operand is row-major, a right operand is in the form that Tiles::multiply wants.
//
// Queries and keys may be of other positions and numbers. Tiles of keys that none of a tile's
// queries sees are left out; where all see all 64 keys, and on the diagonal, on which the positions
// of both are the same, the softmax need not look; the tiles in which keys are hidden otherwise (by
// the last query before them, the last key, a window, a document's border), and all where scores
// are capped or fall with distance or probabilities are dropped, take attention_reach.h.
//
// D head dim; j tile of keys, i tile of queries
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

/// Of a tile of queries and keys; `ahead` is how far the first key is after the first query.
template <typename T>
DSTRAIN_INLINE ScoreBend bend_of(const AttentionTask<T>& task,
                                 std::int64_t head,
                                 std::int64_t ahead) {
  const float slope = task.slopes == nullptr ? 0.0F : task.slopes[head];
  return {task.scale, task.cap, slope, ahead};
}

template <typename T>
DSTRAIN_INLINE TileDropout dropout_of(const AttentionTask<T>& task,
                                      std::int64_t head,
                                      std::int64_t first_query,
                                      std::int64_t first_key) {
  return {task.dropout, task.first_plane + static_cast<std::uint32_t>(head),
          task.first_key + task.first_position + first_query, task.first_key + first_key};
}

DSTRAIN_INLINE std::int64_t tiles_of(std::int64_t positions) {
  return (positions + kTile - 1) / kTile;
}

/// The rows of tile `tile` of so many.
DSTRAIN_INLINE std::int64_t rows_in_tile(std::int64_t tile, std::int64_t rows) {
  return rows - tile * kTile < kTile ? rows - tile * kTile : kTile;
}

template <typename Tiles, typename T>
DSTRAIN_INLINE void flash_forward(const AttentionTask<T>& task) {
  const std::int64_t depth = task.head_dim;
  const std::int64_t tiles = tiles_of(task.sequence);
  ForwardScratch<Tiles> s;
  s.carve(task.scratch, tiles_of(task.keys), depth);
  std::int64_t packed = 0;  // tiles of keys and values packed so far
  for (std::int64_t block = task.first_block; block < task.last_block; ++block) {
    const std::int64_t head = block / tiles;
    const std::int64_t first = block % tiles * kTile;
    const std::int64_t queries = rows_in_tile(block % tiles, task.sequence);
    const TileReach reach = find_reach(task, first, queries, s.first_keys, s.end_keys);
    for (; packed < reach.end_tile; ++packed) {
      const std::int64_t row = packed * kTile;
      const std::int64_t rows = rows_in_tile(packed, task.keys);
      Tiles::rows_left(task.k + row * task.key_stride, task.key_stride, rows, depth,
                       s.k_rows + row * depth);
      Tiles::columns_left(task.v + row * task.value_stride, task.value_stride, rows, depth,
                          s.v_columns + row * depth);
    }
    Tiles::columns_right(task.q + first * task.query_stride + head * depth, task.query_stride,
                         queries, depth, s.q_columns);
    for (std::int64_t query = 0; query < kTile; ++query) {
      s.maximum[query] = -1.0e30F;
      s.total[query] = 0.0F;
    }
    if (reach.first_tile == reach.end_tile) {
      __builtin_memset(s.out_columns, 0, static_cast<std::size_t>(kTile * depth) * sizeof(float));
    }
    for (std::int64_t j = reach.first_tile; j < reach.end_tile; ++j) {
      const bool diagonal = reach.is_diagonal(j);
      keys_by_queries<Tiles>(s.k_rows + j * kTile * depth, s.q_columns, depth, diagonal, s.scores);
      if (is_plain(task) && reach.sees_all(j)) {
        online_softmax(s, task.scale, diagonal);
      } else {
        online_softmax_of_seen(s, bend_of(task, head, j * kTile - reach.own),
                               dropout_of(task, head, first, j * kTile), j * kTile, diagonal);
      }
      if (j > reach.first_tile) {
        scale_columns(s.out_columns, s.factor, depth);
      }
      sum_over_keys<Tiles>(s.v_columns + j * kTile * depth, s.p, depth, diagonal,
                           j > reach.first_tile, s.out_columns);
    }
    float* logsumexp = task.logsumexp_written + head * task.sequence + first;
    for (std::int64_t query = 0; query < kTile; ++query) {
      // A query that sees no key has a total of 0: zeros, and a logsumexp of -∞.
      s.factor[query] = s.total[query] == 0.0F ? 0.0F : 1.0F / s.total[query];
      if (query < queries) {
        logsumexp[query] = s.maximum[query] * kLn2 + __builtin_logf(s.total[query]);
      }
    }
    rows_of(s.out_columns, s.factor, queries, depth,
            task.out_written + first * task.out_stride + head * depth, task.out_stride);
  }
}

/// delta[query] = dout · out (Dao 2023, equation 4), and the tile's logsumexp; 0 beyond the end.
/// What writes dq writes delta.
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
    if (task.dq != nullptr) {
      task.delta[row] = s.delta[query];
    }
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

/// dq of the blocks, dk and dv of the tiles of keys, or all of them at once: each of them is summed
/// in the same order.
template <typename Tiles, typename T>
DSTRAIN_INLINE void flash_backward(const AttentionTask<T>& task) {
  const std::int64_t depth = task.head_dim;
  const std::int64_t padded = Tiles::padded(depth);
  const std::int64_t tiles = tiles_of(task.sequence);
  const bool wants_queries = task.dq != nullptr;
  const bool wants_keys = task.dk != nullptr;
  BackwardScratch<Tiles> s;
  s.carve(task.scratch, tiles_of(task.keys), depth);
  const std::int64_t first_row = task.first_key_tile * kTile;
  const std::int64_t last_row =
      task.last_key_tile * kTile < task.keys ? task.last_key_tile * kTile : task.keys;
  if (wants_keys) {
    const auto bytes =
        static_cast<std::size_t>((task.last_key_tile - task.first_key_tile) * kTile * padded) *
        sizeof(float);
    __builtin_memset(s.dk + first_row * padded, 0, bytes);
    __builtin_memset(s.dv + first_row * padded, 0, bytes);
  }

  std::int64_t packed = task.first_key_tile;
  for (std::int64_t block = task.first_block; block < task.last_block; ++block) {
    const std::int64_t head = block / tiles;
    const std::int64_t first = block % tiles * kTile;
    const std::int64_t queries = rows_in_tile(block % tiles, task.sequence);
    const TileReach reach = find_reach(task, first, queries, s.first_keys, s.end_keys);
    const std::int64_t first_tile =
        reach.first_tile > task.first_key_tile ? reach.first_tile : task.first_key_tile;
    const std::int64_t end_tile =
        reach.end_tile < task.last_key_tile ? reach.end_tile : task.last_key_tile;
    if (!wants_queries && first_tile >= end_tile) {
      continue;
    }
    for (; packed < end_tile; ++packed) {
      const std::int64_t row = packed * kTile;
      const std::int64_t rows = rows_in_tile(packed, task.keys);
      const T* k = task.k + row * task.key_stride;
      Tiles::rows_left(k, task.key_stride, rows, depth, s.k_rows + row * depth);
      Tiles::rows_left(task.v + row * task.value_stride, task.value_stride, rows, depth,
                       s.v_rows + row * depth);
      if (wants_queries) {
        Tiles::columns_left(k, task.key_stride, rows, depth, s.k_columns + row * depth);
      }
    }
    const T* q = task.q + first * task.query_stride + head * depth;
    const T* dout = task.dout + first * task.out_stride + head * depth;
    Tiles::columns_right(q, task.query_stride, queries, depth, s.q_columns);
    Tiles::columns_right(dout, task.out_stride, queries, depth, s.dout_columns);
    if (wants_keys) {
      Tiles::rows_right(q, task.query_stride, queries, depth, s.q_rows);
      Tiles::rows_right(dout, task.out_stride, queries, depth, s.dout_rows);
    }
    load_query_sums(task, s, head, first, queries);
    if (first_tile >= end_tile) {
      __builtin_memset(s.dq_columns, 0, static_cast<std::size_t>(kTile * depth) * sizeof(float));
    }
    for (std::int64_t j = first_tile; j < end_tile; ++j) {
      const bool diagonal = reach.is_diagonal(j);
      const std::int64_t at = j * kTile * depth;
      keys_by_queries<Tiles>(s.k_rows + at, s.q_columns, depth, diagonal, s.scores);
      keys_by_queries<Tiles>(s.v_rows + at, s.dout_columns, depth, diagonal, s.dp);
      if (is_plain(task) && reach.sees_all(j)) {
        probabilities(s, task.scale, diagonal);
      } else {
        probabilities_of_seen(s, bend_of(task, head, j * kTile - reach.own),
                              dropout_of(task, head, first, j * kTile), j * kTile, diagonal);
      }
      if (wants_keys) {
        sum_over_queries<Tiles>(s.p, s.dout_rows, padded, diagonal, s.dv + j * kTile * padded);
        sum_over_queries<Tiles>(s.ds, s.q_rows, padded, diagonal, s.dk + j * kTile * padded);
      }
      if (wants_queries) {
        sum_over_keys<Tiles>(s.k_columns + at, s.ds_right, depth, diagonal, j > first_tile,
                             s.dq_columns);
      }
    }
    if (wants_queries) {
      rows_of(s.dq_columns, s.factor, queries, depth,
              task.dq + first * task.dq_stride + head * depth, task.dq_stride);
    }
  }
  if (wants_keys) {
    write_rows(s.dk + first_row * padded, padded, task.scale, last_row - first_row, depth,
               task.dk + first_row * task.dk_stride, task.dk_stride);
    write_rows(s.dv + first_row * padded, padded, 1.0F, last_row - first_row, depth,
               task.dv + first_row * task.dv_stride, task.dv_stride);
  }
}

template <typename Tiles>
DSTRAIN_INLINE std::int64_t flash_scratch_bytes(std::int64_t keys, std::int64_t depth) {
  ForwardScratch<Tiles> forward;
  BackwardScratch<Tiles> backward;
  const std::uintptr_t a = forward.carve(nullptr, tiles_of(keys), depth);
  const std::uintptr_t b = backward.carve(nullptr, tiles_of(keys), depth);
  return static_cast<std::int64_t>(a > b ? a : b);
}

}  // namespace dstrain::DSTRAIN_ISA
