// How much of a model is trained, and what of a step's arithmetic that leaves out.
#pragma once

#include <cstdint>

#include "engine/config/config.h"
#include "engine/model/layer_shape.h"

namespace dstrain {

AdapterShape adapters_of(const Config& config);
/// The shape of a config's model as far as it says which part is trained.
LayerShape trained_part_of(const Config& config);

/// The numbers that are trained, those of adapters or of the model.
std::int64_t trained_parameters(const LayerShape& shape);

/// The part of flops_per_token() of the model that a step does not compute: of a matrix that is not
/// trained its gradient, a third; less what adapters compute, so that it may be below 0.
double left_out_flops_per_token(const LayerShape& shape);
/// What of it is of one block, and of the head.
double left_out_flops_of_block(const LayerShape& shape, std::size_t block);
double left_out_flops_of_head(const LayerShape& shape);

}  // namespace dstrain
