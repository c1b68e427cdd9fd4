// LatentProjection: queries, keys and values of multi-head latent attention (DeepSeek-V2, arXiv
// 2405.04434, §2.1), in the packed rows that attention reads.
//
//   q = x · queryᵀ, or norm(x · query_downᵀ) · query_upᵀ      [N, H·(P + R)]
//   c ‖ r = x · latent_downᵀ                                  [N, L + R]
//   k ‖ v of each head = norm(c) · latent_upᵀ                 [N, H·(P + V)]
//   packed rows q‖k‖v of heads of D = R + P: of q and k the numbers that rotate come first, r for
//   all heads alike; of v come zeros behind its V numbers
//
// Pairs that rotate lie side by side in q and r, and R/2 apart in packed rows, as Ops::rope has
// them; scores are the same, as q and k are ordered alike. Tensor-parallel ranks have some of the
// heads; all compute the latents, and each adds its heads' part of their gradients.
#pragma once

#include <optional>
#include <string>

#include "engine/model/layer_context.h"
#include "engine/model/layer_shape.h"
#include "engine/model/linear.h"
#include "kernels/block_copy.h"

namespace dstrain {

class LatentProjection {
 public:
  static LatentProjection declare(const LayerShape& shape,
                                  const std::string& name,
                                  Blueprint& blueprint);

  /// packed [N, 3·H·D], before the rotation
  void forward(const LayerContext& context, int slot, ConstTensor x_NC, Tensor packed) const;
  /// d_packed is used up.
  void backward(const LayerContext& context,
                int slot,
                ConstTensor x_NC,
                Tensor d_packed,
                Tensor dx_NC,
                const GradTarget& gradients) const;

  /// The V numbers of each head of attention's results [N, H·D]: [N, H·V], until the next call.
  [[nodiscard]] Tensor values_of(const LayerContext& context, Tensor heads) const;
  /// The gradient of what values_of gives, to be filled.
  [[nodiscard]] Tensor d_values(const LayerContext& context, Tensor d_heads) const;
  /// Fills d_heads from it.
  void spread(const LayerContext& context, Tensor d_heads) const;

 private:
  /// An RMS norm of the first columns of a matrix.
  struct Norm {
    ParamRef weight{};
    std::int64_t width = 0;
    BufferRef squares{};  // for backward: f32 [N]
  };
  Norm declare_norm(const LayerShape& shape, const std::string& name, Blueprint& blueprint) const;
  void norm_forward(
      const LayerContext& context, int slot, const Norm& norm, Tensor x, Tensor y) const;
  void norm_backward(const LayerContext& context,
                     int slot,
                     const Norm& norm,
                     ConstTensor dy,
                     ConstTensor x,
                     Tensor dx,
                     const GradTarget& gradients) const;

  /// Calls visit(from, copy) for the copies that make packed rows, from q, kv and latent.
  enum class Source : std::uint8_t { kQuery, kKeyValue, kRotated };
  template <typename Visit>
  void for_each_copy(std::int64_t rows, Visit&& visit) const;
  [[nodiscard]] BlockCopy value_copy(std::int64_t rows) const;

  [[nodiscard]] std::int64_t depth() const { return plain_ + rotated_; }  // D
  [[nodiscard]] std::int64_t packed_width() const { return 3 * heads_ * depth(); }

  std::int64_t heads_ = 0;    // H of this rank
  std::int64_t plain_ = 0;    // P
  std::int64_t rotated_ = 0;  // R
  std::int64_t value_ = 0;    // V
  std::optional<Linear> query_down_;
  Norm query_norm_;  // with query_down_
  Linear query_;     // from x, or from the normed latent
  Linear latent_down_;
  Norm latent_norm_;
  Linear latent_up_;
  // For backward:
  BufferRef query_latent_;  // [N, rank of queries], as query_normed_
  BufferRef query_normed_;
  BufferRef latent_;  // [N, L + R]
  BufferRef normed_;  // [N, L]
  // Scratch, in backward for the gradients of what they hold in forward:
  BufferRef q_;       // [N, H·D]
  BufferRef kv_;      // [N, H·(P + V)]
  BufferRef values_;  // [N, H·V]; where V < D
  // Scratch of backward:
  BufferRef d_values_;        // [N, H·V]; where V < D
  BufferRef d_latent_;        // [N, L + R]
  BufferRef d_normed_;        // [N, L]
  BufferRef d_query_latent_;  // [N, rank of queries]
  BufferRef d_x_;             // [N, C]
  BufferRef products_;        // f32 [N]
};

}  // namespace dstrain
