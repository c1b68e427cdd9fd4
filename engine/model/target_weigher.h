// TargetWeigher: gives the loss of each target its weight where that depends on the losses of
// others, as those of an answer's tokens on how likely another answer is. Between a micro-batch's
// forward and its backward the loss head computes the losses of its targets, and asks.
#pragma once

#include <cstdint>

#include "kernels/core/tensor.h"

namespace dstrain {

/// All f32 [N], of the tokens of this rank, in the device's memory, used on the compute stream.
struct TargetNumbers {
  ConstTensor losses;    ///< nats, 0 where no target counts; or scores
  ConstTensor values{};  ///< empty where there is no head of values
};
struct TargetWeights {
  Tensor losses;
  Tensor values{};  ///< likewise
};

class TargetWeigher {
 public:
  TargetWeigher() = default;
  TargetWeigher(const TargetWeigher&) = delete;
  TargetWeigher& operator=(const TargetWeigher&) = delete;
  virtual ~TargetWeigher() = default;

  /// `micro_batch`: its index within the step. `weights` are to be written: the derivative of what
  /// is minimised by each of what was found.
  virtual void weigh(std::int64_t micro_batch,
                     const TargetNumbers& found,
                     const TargetWeights& weights) = 0;
};

}  // namespace dstrain
