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

/// The same for a sweep that sanitizers alone cut, as a case takes them ten times as long.
inline int one_in_if_sanitized([[maybe_unused]] int step) {
#ifdef DSTRAIN_SANITIZED
  return one_in(step);
#else
  return 1;
#endif
}

}  // namespace dstrain::testing
