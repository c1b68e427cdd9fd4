// The operands of the optimizers: what a step updates, and the steps themselves.
#pragma once

#include <variant>

#include "kernels/core/tensor.h"
#include "kernels/math/optimizer_steps.h"

namespace dstrain {

/// The tensors that an optimizer works on: one flat range of each.
struct OptimizerTensors {
  ConstTensor gradient;   ///< f32, bf16 or f16
  Tensor master;          ///< f32 or bf16
  Tensor first_moment;    ///< f32 or bf16; empty where the optimizer has none
  Tensor second_moment;   ///< likewise
  Tensor third_moment;    ///< f32; empty where the optimizer has none
  Tensor parameters;      ///< f32, bf16 or f16: copy of the new master; empty: not wanted
  RoundingNoise noise{};  ///< master and moments in bf16 are rounded stochastically
};

/// A step of an optimizer that updates each element alone. Adam is an AdamwStep too
/// (AdamwStep::gradient_decay). Which moments each of them keeps: kept_by(), optimizer_operands.h.
/// The last three are steps with a frozen variance, the second moment, which they only read; their
/// state is f32. LocalStep's parameters are not the master's copy, and must be given.
struct ElementwiseStep : std::variant<AdamwStep,
                                      SgdStep,
                                      AdagradStep,
                                      RmspropStep,
                                      LionStep,
                                      OneBitAdamStep,
                                      LocalStep,
                                      SyncStep> {
  using variant::variant;
};

}  // namespace dstrain
