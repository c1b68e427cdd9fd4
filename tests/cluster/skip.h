// What a test says that cannot run here, as the first line of its body:
//     if (no_cluster_here()) return;
// Catch2 2 has no state for a skipped test; the reason goes to its output.
#pragma once

#include <catch2/catch.hpp>

#include "tests/cluster/cluster.h"

namespace dstrain::testing {

inline bool no_cluster_here() {
  const auto reason = why_no_cluster();
  if (reason) WARN("SKIP: " << *reason);
  return reason.has_value();
}

}  // namespace dstrain::testing
