// The scratch memory of one attention task. Tiles says how operands are stored (flash_attention.h);
// a left operand is row-major, a right one in the form of Tiles::multiply.
#pragma once

#include "kernels/cpu/vector/carver.h"
#include "kernels/cpu/vector/transpose.h"

namespace dstrain::DSTRAIN_ISA {

constexpr std::int64_t kTileSize = kTile * kTile;
constexpr std::int64_t kHalf = kTile / 2;

template <typename Tiles>
struct ForwardScratch {
  using E = typename Tiles::Element;
  E* k_rows;     // [tiles][64][D], left operand
  E* v_columns;  // [tiles][D][64], left
  E* q_columns;  // depth D, 64 columns, right
  float* scores;
  E* p;                // Pᵀ: depth 64 keys, 64 columns, right
  float* out_columns;  // [D][64]
  float* maximum;
  float* total;
  float* factor;
  std::int32_t* first_keys;  // that each query sees, and their ends
  std::int32_t* end_keys;

  DSTRAIN_INLINE std::uintptr_t carve(void* base, std::int64_t tiles, std::int64_t depth) {
    Carver carver{reinterpret_cast<std::uintptr_t>(base)};
    k_rows = carver.take<E>(tiles * kTile * depth);
    v_columns = carver.take<E>(tiles * kTile * depth);
    q_columns = carver.take<E>(kTile * depth);
    scores = carver.take<float>(kTileSize);
    p = Tiles::tile_operand(scores, carver);
    out_columns = carver.take<float>(kTile * depth);
    maximum = carver.take<float>(kTile);
    total = carver.take<float>(kTile);
    factor = carver.take<float>(kTile);
    first_keys = carver.take<std::int32_t>(kTile);
    end_keys = carver.take<std::int32_t>(kTile);
    return carver.next;
  }
};

template <typename Tiles>
struct BackwardScratch {
  using E = typename Tiles::Element;
  E* k_rows;        // [tiles][64][D], left
  E* v_rows;        // [tiles][64][D], left
  E* k_columns;     // [tiles][D][64], left
  E* q_columns;     // depth D, right
  E* dout_columns;  // depth D, right
  E* q_rows;        // depth 64, right
  E* dout_rows;     // depth 64, right
  float* scores;
  float* dp;
  E* p;               // Pᵀ, left
  E* ds;              // dSᵀ, left
  E* ds_right;        // dSᵀ, right
  float* dq_columns;  // [D][64]
  float* dk;          // [tiles·64][padded D]
  float* dv;
  float* logsumexp2;  // in units of log 2
  float* delta;
  float* factor;
  std::int32_t* first_keys;  // that each query sees, and their ends
  std::int32_t* end_keys;

  DSTRAIN_INLINE std::uintptr_t carve(void* base, std::int64_t tiles, std::int64_t depth) {
    Carver carver{reinterpret_cast<std::uintptr_t>(base)};
    const std::int64_t padded = Tiles::padded(depth);
    k_rows = carver.take<E>(tiles * kTile * depth);
    v_rows = carver.take<E>(tiles * kTile * depth);
    k_columns = carver.take<E>(tiles * kTile * depth);
    q_columns = carver.take<E>(kTile * depth);
    dout_columns = carver.take<E>(kTile * depth);
    q_rows = carver.take<E>(kTile * padded);
    dout_rows = carver.take<E>(kTile * padded);
    scores = carver.take<float>(kTileSize);
    dp = carver.take<float>(kTileSize);
    p = Tiles::tile_operand(scores, carver);
    ds = Tiles::tile_operand(dp, carver);
    ds_right = Tiles::tile_operand(dp, carver);
    dq_columns = carver.take<float>(kTile * depth);
    dk = carver.take<float>(tiles * kTile * padded);
    dv = carver.take<float>(tiles * kTile * padded);
    logsumexp2 = carver.take<float>(kTile);
    delta = carver.take<float>(kTile);
    factor = carver.take<float>(kTile);
    first_keys = carver.take<std::int32_t>(kTile);
    end_keys = carver.take<std::int32_t>(kTile);
    return carver.next;
  }
};

}  // namespace dstrain::DSTRAIN_ISA
