// Initial parameters: the value of element k of tensor t is a pure function of (seed, t, k), the
// same whatever the number of ranks and however the tensor is cut.
#pragma once

#include <cstdint>
#include <span>

#include "engine/plan/blueprint.h"

namespace dstrain {

/// Computes elements [begin, begin + out.size()) of a parameter's initial value, with `threads`
/// threads.
void initial_values(const ParamDecl& param,
                    std::uint64_t seed,
                    std::int64_t begin,
                    std::span<float> out,
                    int threads);

}  // namespace dstrain
