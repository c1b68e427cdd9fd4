// HeadExchange: the ranks of a context-parallel group that exchange tokens for heads while they
// attend (Jacobs et al. 2023, "DeepSpeed Ulysses", §3). Before, each of the u ranks has all heads
// of its own tokens; meanwhile, all tokens of a u-th of the heads.
//
//   to_heads     q‖k‖v of my tokens  → all-to-all →  q‖k‖v of my heads
//   to_tokens    my heads' results   → all-to-all →  results of my tokens
// and backward the gradients the other way. On the wire, a block and micro-batch: two all-to-alls
// forward, two backward, of what a rank has: N · (H + 2K) · D and N · H · D numbers.
//
// Where there are fewer key/value heads than ranks, neighbours are sent the same one, and its
// gradient is the sum of theirs.
//
// H query heads and K key/value heads of this tensor-parallel rank, D head dim, N own tokens
#pragma once

#include <vector>

#include "engine/model/layer_context.h"
#include "engine/model/layer_shape.h"
#include "kernels/ops.h"

namespace dstrain {

class HeadExchange {
 public:
  /// `own`: the heads of this rank's tokens. A group of one exchanges nothing.
  static HeadExchange declare(const LayerShape& shape,
                              const AttentionShape& own,
                              Blueprint& blueprint);

  [[nodiscard]] bool exchanges() const { return ranks_ > 1; }
  /// The attention that this rank computes: heads of its share, and tokens of its group.
  [[nodiscard]] const AttentionShape& dealt() const { return dealt_; }

  /// packed [N, (H + 2K)·D] → dealt [u·N, …]
  void to_heads(const LayerContext& context, ConstTensor packed, Tensor dealt) const;
  void to_heads_backward(const LayerContext& context, ConstTensor d_dealt, Tensor d_packed) const;
  /// dealt [u·N, H/u·D] → heads [N, H·D]
  void to_tokens(const LayerContext& context, ConstTensor dealt, Tensor heads) const;
  void to_tokens_backward(const LayerContext& context, ConstTensor d_heads, Tensor d_dealt) const;
  /// The elements that an all-to-all of q‖k‖v and one of heads' results move on a rank.
  [[nodiscard]] std::int64_t packed_elements() const {
    return ranks_ * own_tokens_ * packed_width();
  }
  [[nodiscard]] std::int64_t heads_elements() const { return ranks_ * own_tokens_ * heads_width(); }

 private:
  /// Of one rank's share.
  [[nodiscard]] std::int64_t packed_width() const {
    return (dealt_.query_heads + 2 * dealt_.key_value_heads) * dealt_.head_dim;
  }
  [[nodiscard]] std::int64_t heads_width() const { return dealt_.query_heads * dealt_.head_dim; }

  /// Columns of a row of all heads, and where the parts for the ranks have them.
  struct Columns {
    std::int64_t first = 0;    // of all heads' row
    std::int64_t in_part = 0;  // of a part's row
    std::int64_t width = 0;    // of a part
    std::int64_t copies = 1;   // neighbours that have the same columns
  };
  [[nodiscard]] std::vector<Columns> packed_columns() const;
  void put_columns(const LayerContext& context,
                   const std::vector<Columns>& columns,
                   ConstTensor rows,
                   Tensor parts) const;
  void take_columns(const LayerContext& context,
                    const std::vector<Columns>& columns,
                    ConstTensor parts,
                    Tensor rows) const;
  /// Sends each rank its part, all of `width` numbers a token, and receives theirs.
  void exchange(const LayerContext& context, ConstTensor parts, Tensor received) const;
  /// Between the order of the parts, rank by rank, and that of the group's tokens.
  enum class Order : std::uint8_t { kToTokens, kToParts };
  void reorder(const LayerContext& context, Order order, ConstTensor from, Tensor to) const;

  int ranks_ = 1;
  std::int64_t own_tokens_ = 0;  // N
  std::int64_t runs_ = 1;        // of neighbouring tokens that a rank has: chunks · sequences
  AttentionShape own_;
  AttentionShape dealt_;
  BufferRef parts_;     // scratch [u·N·(H + 2K)/u·D]: as sent
  BufferRef received_;  // scratch, as large
};

}  // namespace dstrain
