// TargetWeigher: gives the loss of each target its weight where that depends on the losses of
// others, as those of an answer's tokens on how likely another answer is. Between a micro-batch's
// forward and its backward the loss head computes the losses of its targets, and asks.
#pragma once

#include <cstdint>

#include "kernels/core/tensor.h"

namespace dstrain {

class TargetWeigher {
 public:
  TargetWeigher() = default;
  TargetWeigher(const TargetWeigher&) = delete;
  TargetWeigher& operator=(const TargetWeigher&) = delete;
  virtual ~TargetWeigher() = default;

  /// `micro_batch`: its index within the step. `losses`: nats, 0 where no target counts; `weights`,
  /// to be written: the derivative of what is minimised by each of them. Both f32 [N], of the
  /// tokens of this rank, in the device's memory, used on the compute stream.
  virtual void weigh(std::int64_t micro_batch, ConstTensor losses, Tensor weights) = 0;
};

}  // namespace dstrain
