// What a step puts on the wire, rank by rank, from the formulas of the papers and of the strategy
// files, to be compared with what was recorded: count for count, byte for byte.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "engine/config/config.h"
#include "engine/train/run_plan.h"
#include "tests/harness/tiny_model.h"

namespace dstrain::test {

struct Count {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;  ///< as in CollectiveLog::Entry, of all calls
  friend bool operator==(const Count&, const Count&) = default;
};

/// By kind of group ("tensor-parallel", whichever it is), operation and purpose.
using Traffic = std::map<std::tuple<std::string, Op, Purpose>, Count>;

Traffic recorded_traffic(const TinyRun& run);
/// `plan`: of this rank; read for where it stands, its layers and the sizes of its units.
Traffic expected_traffic(const Config& config, const RunPlan& plan);

}  // namespace dstrain::test
