// UnitWalk: the order in which a pass over the model visits its units, and what each visit reads
// and writes. Known before anything runs, so that what must be gathered, and when its memory is
// free again, is arithmetic and not discovery.
#pragma once

#include <vector>

#include "kernels/op_kinds.h"

namespace dstrain {

struct UnitVisit {
  Pass pass = Pass::kForward;
  int unit = 0;
  std::vector<int> reads;   ///< units whose parameters it computes with
  std::vector<int> writes;  ///< units whose gradients it writes or adds to
};

using UnitWalk = std::vector<UnitVisit>;

}  // namespace dstrain
