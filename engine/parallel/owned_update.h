// The end of every stage's step: the norm of what the ranks own together, clipping, and the
// optimizer on what this rank owns.
#pragma once

#include <vector>

#include "engine/parallel/data_parallel.h"

namespace dstrain {

/// What this rank updates of every unit, in order. The arena's tensors do not move, so once is
/// enough.
std::vector<UnitState> owned_states(const DataParallelParts& parts);

/// Whether the states of the ranks are the same ones or the parts of a whole.
enum class Ownership : std::uint8_t { kEachHasAll, kEachHasASlice };

/// Norm, clipping and update. `updated(i)` as in Optimizer::update. If the norm is not finite,
/// nothing is changed; all ranks see the same norm and so agree.
StepStats update_owned(const DataParallelParts& parts,
                       const std::vector<UnitState>& states,
                       Ownership ownership,
                       const StepParams& params,
                       const Optimizer::UnitUpdated& updated);

/// Casts the master of what this rank owns into the parameters, where the two are not the same.
void copy_master_to_parameters(const DataParallelParts& parts);

}  // namespace dstrain
