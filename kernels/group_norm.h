// RMS norms of groups of columns, which is how queries and keys are normalised. In Qwen3 each head
// is a group; in OLMo 2 all queries are one group, and so are all keys. A norm takes two steps, so
// that between them ranks of tensor parallelism can add the squares of a group that is cut over
// them:
//
//   group_squares, [all-reduce], group_norm_forward;  group_products, [all-reduce],
//   group_norm_backward
//
// N tokens, G groups of W columns each, with one weight of W for all groups
#pragma once

#include "kernels/core/columns.h"
#include "kernels/op_kinds.h"

namespace dstrain {

/// y = x / sqrt(squares / norm_width + epsilon) · (weight_offset + weight) (Zhang & Sennrich 2019).
struct GroupNormForward {
  float epsilon;
  std::int64_t
      norm_width;  ///< what `squares` sums over: W, times the ranks that a group is cut over
  ConstColumns x;  ///< N rows of G·W
  ConstTensor weight_W;
  float weight_offset = 0.0F;
  ConstTensor squares_NG;  ///< f32: group_squares(x), summed over those ranks
  Columns y;               ///< may be x
};

/// The gradient of group_norm_forward.
struct GroupNormBackward {
  float epsilon;
  std::int64_t norm_width;
  ConstColumns dy;
  ConstColumns x;  ///< as it was before the norm
  ConstTensor weight_W;
  float weight_offset = 0.0F;
  ConstTensor squares_NG;
  ConstTensor
      products_NG;   ///< f32: group_products(dy, x, weight, weight_offset), summed over those ranks
  Columns dx;        ///< overwritten; may be dy
  Tensor dweight_W;  ///< f32; of this rank's groups
  Write weight_write;
};

}  // namespace dstrain
