// TensorParallel: what happens where activations enter and leave a layer that is split over the
// ranks of a tensor-parallel group (Shoeybi et al. 2019, §3; sequence parallelism: Korthikanti et
// al. 2022, §4.2). Inside, each rank has its share of heads, of feed-forward columns or of the
// vocabulary, and sees all N tokens; the layer's result is the sum over the ranks.
//
//                        without               with sequence parallelism
//   enter                nothing               all-gather: my tokens → all tokens
//   leave                all-reduce            reduce-scatter: partial sums → my tokens, summed
//   leave_backward       nothing               all-gather
//   enter_backward       all-reduce            reduce-scatter
//
// With sequence parallelism norms and the residual stream work on N/t tokens of this rank, rows
// [rank · N/t, (rank + 1) · N/t). An all-reduce moves as much as the two others together.
// On the wire, a block and micro-batch, N·C elements each: 4 all-reduces without; with, 4
// reduce-scatters and 6 all-gathers, as the inputs of both halves are gathered again for backward
// rather than kept.
#pragma once

#include "engine/comm/communicator.h"
#include "kernels/core/device.h"
#include "kernels/core/tensor.h"

namespace dstrain {

class TensorParallel {
 public:
  /// `group` outlives this. A group of one does nothing.
  TensorParallel(Communicator& group, bool sequence_parallel)
      : group_(group), splits_tokens_(sequence_parallel && group.size() > 1) {}

  [[nodiscard]] int size() const { return group_.size(); }
  [[nodiscard]] int rank() const { return group_.rank(); }
  [[nodiscard]] Communicator& group() const { return group_; }
  /// Whether norms and residual hold only this rank's tokens.
  [[nodiscard]] bool splits_tokens() const { return splits_tokens_; }

  /// Returns what a split layer reads: `stream` itself, or all tokens gathered into `whole_NC`.
  ConstTensor enter(ConstTensor stream, Tensor whole_NC, Stream& compute) const;
  /// Computes, from the gradient of what it read, of which each rank has a part, that of `stream`:
  /// a view into d_whole_NC, which is overwritten.
  Tensor enter_backward(Tensor d_whole_NC, Stream& compute) const;
  /// Computes the stream from each rank's part of the result: a view into y_NC, which is
  /// overwritten.
  Tensor leave(Tensor y_NC, Stream& compute) const;
  /// The same with the stream's memory elsewhere.
  void leave_into(Tensor y_NC, Tensor stream, Stream& compute) const;
  /// Returns the gradient of each rank's part: `d_stream` itself, or all tokens gathered into
  /// d_whole_NC.
  ConstTensor leave_backward(ConstTensor d_stream, Tensor d_whole_NC, Stream& compute) const;

  /// Returns this rank's part of n elements that all t ranks hold: [rank · n/t, (rank + 1) · n/t).
  [[nodiscard]] ConstTensor part_of(ConstTensor whole) const;
  /// Gathers those parts of all ranks into `whole`.
  void make_whole(ConstTensor part, Tensor whole, Stream& compute) const;

 private:
  [[nodiscard]] Tensor my_tokens(Tensor whole_NC) const;
  Tensor sum(Tensor partial_NC, Stream& compute) const;

  Communicator& group_;
  bool splits_tokens_;
};

}  // namespace dstrain
