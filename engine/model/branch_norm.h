// BranchNorm: the norms of one half of a block and the residual addition in front of it, wherever
// the architecture places them.
//
// Dropout, where the model has it, applies to the result before it is added.
//
//   before the branch   stream = x + delta;  branch reads norm(stream);  adds its result
//   after it            stream = x + delta;  branch reads stream;        adds norm(its result)
//   around it           stream = x + delta;  branch reads norm(stream);  adds norm(its result)
#pragma once

#include <string>

#include "engine/model/dropout.h"
#include "engine/model/norm.h"

namespace dstrain {

class BranchNorm {
 public:
  /// `name` is that of the half ("blocks.3.attention"), to which its norm appends "_norm", and a
  /// second one "_result_norm". `stream` says how x + delta comes about, `branch` what is dropped
  /// of the result.
  static BranchNorm declare(const LayerShape& shape,
                            const std::string& name,
                            Origin stream,
                            DropoutSite branch,
                            Blueprint& blueprint);

  /// Declares the norm of a half of the block that reads the same stream as `other`'s half, each
  /// through a norm of its own.
  static BranchNorm declare_beside(const BranchNorm& other,
                                   const LayerShape& shape,
                                   const std::string& name,
                                   Blueprint& blueprint);

  /// Says that each rank computes the branch alone, for the tokens of its own stream: results are
  /// whole.
  void set_own_tokens() { own_tokens_ = true; }

  /// x + delta: what this half adds its result to.
  [[nodiscard]] Tensor stream(const LayerContext& context, int slot) const;
  /// Computes stream() and input(). Without a delta, x is stream() itself, already filled.
  void begin(const LayerContext& context, int slot, ConstTensor x, ConstTensor delta) const;
  /// The tensor that the branch reads, of this rank's tokens.
  [[nodiscard]] ConstTensor input(const LayerContext& context, int slot) const;
  /// The tensor into which the branch writes its result, of which each rank has a part: `scratch`,
  /// or the place where it stays.
  [[nodiscard]] Tensor result(const LayerContext& context, int slot, Tensor scratch) const;
  /// Computes from that what is added to stream().
  [[nodiscard]] ConstTensor end(const LayerContext& context, int slot, Tensor result) const;
  /// The tensor that end() returns where one rank has all of the branch.
  [[nodiscard]] ConstTensor delta(const LayerContext& context, int slot, Tensor result) const;

  /// Computes again what begin() and end() computed row by row from what is kept.
  void renew(const LayerContext& context, int slot) const;
  /// Whether backward reads the branch's result.
  [[nodiscard]] bool reads_result() const { return has_after_; }

  /// Computes, from the gradient of stream() + what was added to it, that of the branch's result.
  [[nodiscard]] ConstTensor end_backward(const LayerContext& context,
                                         int slot,
                                         Tensor d_stream,
                                         const GradTarget& gradients) const;
  /// Adds the gradient that comes back through input().
  void begin_backward(const LayerContext& context,
                      int slot,
                      ConstTensor d_input,
                      Tensor d_stream,
                      const GradTarget& gradients) const;

 private:
  bool has_before_ = true;
  bool has_after_ = false;
  bool own_tokens_ = false;
  Norm before_;  // of the stream
  Norm after_;   // of the branch's result
  StreamDropout dropout_;
  BufferRef stream_;    // where no norm stands before the branch
  BufferRef d_result_;  // scratch, where one stands after it, and with dropout
};

}  // namespace dstrain
