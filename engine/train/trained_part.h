// How much of a model is trained, and what of a step's arithmetic that leaves out.
#pragma once

#include <cstdint>

#include "engine/model/layer_shape.h"

namespace dstrain {

/// The numbers that are trained, those of adapters or of the model.
std::int64_t trained_parameters(const LayerShape& shape);

/// The part of flops_per_token() of the model that a step does not compute: of a matrix that is not
/// trained its gradient, a third; less what adapters compute, so that it may be below 0.
double left_out_flops_per_token(const LayerShape& shape);

}  // namespace dstrain
