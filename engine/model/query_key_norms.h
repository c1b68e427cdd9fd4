// QueryKeyNorms: RMS norms of queries and keys, between their product and their rotation, where a
// model has them (QueryKeyNorm in engine/config/arch/architecture.h).
//
//   per head     q and k of each head by itself, all heads with one weight [D]
//   full width   all of a token's heads together. Ranks of tensor parallelism have some of them
//                each, and sum their squares (and, in backward, their products): N · 2 f32 each
//                way.
//
// Backward needs queries and keys as they were before the norm, so q‖k‖v is kept twice.
#pragma once

#include <string>
#include <vector>

#include "engine/model/layer_context.h"
#include "engine/model/layer_shape.h"

namespace dstrain {

class QueryKeyNorms {
 public:
  /// Declares the norms for packed rows q‖k‖v of this rank's heads.
  static QueryKeyNorms declare(const LayerShape& shape,
                               const std::string& name,
                               std::int64_t query_width,
                               std::int64_t key_value_width,
                               Blueprint& blueprint);

  /// Normalises q and k in place. In a model without such norms it does nothing, and neither does
  /// backward.
  void forward(const LayerContext& context, int slot, Tensor packed) const;
  /// Turns the gradient of what forward made into that of what it was given, in place.
  void backward(const LayerContext& context,
                int slot,
                Tensor d_packed,
                const GradTarget& gradients) const;

 private:
  /// Queries or keys.
  struct Part {
    ParamRef weight;
    std::int64_t first = 0;   // column of packed rows
    std::int64_t width = 0;   // of all its groups on this rank
    std::int64_t groups = 0;  // that are normalised by themselves
    std::int64_t first_group = 0;
  };
  /// Sums of one part's groups, [N, groups], within those of both.
  [[nodiscard]] static Tensor of_part(Tensor sums, std::int64_t rows, const Part& part);
  void sum_over_ranks(const LayerContext& context, Tensor sums) const;
  [[nodiscard]] std::int64_t norm_width(const LayerContext& context, const Part& part) const;

  float epsilon_ = 0.0F;
  float weight_offset_ = 0.0F;
  bool full_width_ = false;
  std::vector<Part> parts_;
  BufferRef before_;    // for backward: q‖k‖v before the norm
  BufferRef squares_;   // for backward: N for each group of both parts, f32
  BufferRef products_;  // scratch, likewise
};

}  // namespace dstrain
