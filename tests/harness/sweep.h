// Sweeps over thousands of cases: scripts/test runs all of them, a plain ctest, and CI, one in
// some, spread evenly.
#pragma once

#include <cstdlib>

namespace dstrain::testing {

/// `step`, or 1 with DSTRAIN_WHOLE_SWEEPS=1 in the environment: the distance from one case to the
/// next. A step that shares no factor with the sizes of what is swept over reaches all of them in
/// turn.
inline int one_in(int step) {
  return std::getenv("DSTRAIN_WHOLE_SWEEPS") == nullptr ? step : 1;
}

}  // namespace dstrain::testing
