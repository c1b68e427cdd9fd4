// Skips a test of several hosts that cannot run here; the first line of its body is:
//     if (no_cluster_here()) return;
#pragma once

#include <catch2/catch.hpp>

#include "tests/cluster/cluster.h"
#include "tests/harness/skip.h"

namespace dstrain::testing {

inline bool no_cluster_here() {
  const auto reason = why_no_cluster();
  if (reason) testing::skip(*reason);
  return reason.has_value();
}

}  // namespace dstrain::testing
