// The numbers that one step of each optimizer needs beside the tensors. The formulas are in the
// files of the optimizers' names, which the loops alone include.
#pragma once

#include <cstdint>

namespace dstrain {

struct AdamwStep {
  double learning_rate = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;      ///< AdamW's
  double gradient_decay = 0.0;    ///< Adam's: gradient_decay · parameter is added to the gradient
  double bias_correction1 = 1.0;  ///< 1 - beta1ᵗ, t counted from 1; 1 where correction is off
  double bias_correction2 = 1.0;  ///< 1 - beta2ᵗ
  double gradient_scale = 1.0;    ///< clipping and loss scaling, applied to the gradient first
};

struct SgdStep {
  double learning_rate = 0.0;
  double momentum = 0.0;  ///< 0: there is no buffer
  double dampening = 0.0;
  bool nesterov = false;
  bool first = false;  ///< the buffer holds nothing yet
  double weight_decay = 0.0;
  double gradient_scale = 1.0;
};

struct AdagradStep {
  float learning_rate = 0.0F;
  float epsilon = 1e-10F;
  float weight_decay = 0.0F;
  float gradient_scale = 1.0F;
};

struct RmspropStep {
  double learning_rate = 0.0;
  double alpha = 0.99;  ///< of the running mean of squares
  double epsilon = 1e-8;
  double momentum = 0.0;  ///< 0: there is no buffer
  bool centered = false;  ///< squares less the square of the mean, which takes the buffer's place
  double weight_decay = 0.0;
  double gradient_scale = 1.0;
};

struct LionStep {
  double learning_rate = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0.0;
  double gradient_scale = 1.0;
};

struct LambStep {
  double learning_rate = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  bool eps_inside_sqrt = false;
  double weight_decay = 0.0;
  double bias_correction1 = 1.0;  ///< 1 - beta1ᵗ, t counted from 1; 1 where correction is off
  double bias_correction2 = 1.0;  ///< 1 - beta2ᵗ
  double max_coeff = 10.0;        ///< of the trust ratio
  double min_coeff = 0.01;
  double gradient_scale = 1.0;
};

/// 1-bit Adam once its variance is frozen; the gradient is the momentum that all ranks received.
struct OneBitAdamStep {
  double learning_rate = 0.0;
  double epsilon = 1e-8;
  double weight_decay = 0.0;  ///< as AdamW's
};

/// 0/1 Adam between synchronisations, on each rank alone.
struct LocalStep {
  double learning_rate = 0.0;
  double beta1 = 0.9;
  double epsilon = 1e-8;
  double weight_decay = 0.0;  ///< as AdamW's, of what all ranks agree on
  double gradient_scale = 1.0;
};

/// 0/1 Adam's synchronisation; the gradient is the mean over the ranks of what LocalStep summed.
struct SyncStep {
  double epsilon = 1e-8;
  double rates = 0.0;  ///< the sum of the learning rates since the last one
};

/// 1-bit LAMB once variance and trust ratio are frozen.
struct OneBitLambStep {
  double learning_rate = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  double factor_max = 4.0;  ///< of what the frozen coefficient is multiplied by
  double factor_min = 0.5;
  double factor_threshold = 0.1;  ///< how far it may be from the last one, as a share of that
};

struct MuonStep {
  double momentum = 0.95;
  bool nesterov = true;
  double gradient_scale = 1.0;
};

/// The source of a range's random bits when bf16 is rounded stochastically: Philox with `seed` as
/// key and (element, stream) as counter. No initialisers: this is compiled for every instruction
/// set.
struct RoundingNoise {
  std::uint64_t seed;
  std::uint64_t stream;        ///< what is rounded: unit and update
  std::int64_t first_element;  ///< index of the range's first element in the unit
};

}  // namespace dstrain
