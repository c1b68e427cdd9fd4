// MemoryFit: whether a run fits into the memory that a rank has; if not, which changes of the
// config would make it fit, cheapest first, each planned as the run itself would be; if it does,
// how large a micro-batch would.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/config_json.h"
#include "engine/train/accelerators.h"
#include "engine/train/run_plan.h"
#include "engine/train/step_price.h"

namespace dstrain {

/// The config, resolved, with these --set's after those that it was loaded with. Throws
/// ConfigError.
using ConfigWith = std::function<LoadedConfig(const std::vector<std::string>& overrides)>;
/// The bytes that libraries take on a rank's device beside its plan.
using OverheadOf = std::function<std::int64_t(const RunPlan& plan)>;

struct FitQuestion {
  ConfigWith config_with;
  int world_size = 1;
  MemoryLimit limit;
  OverheadOf overhead;
  Cluster cluster;
};

struct Remedy {
  std::vector<std::string> overrides;  ///< of --set
  std::string what;                    ///< "recompute blocks in full, ZeRO stage 3"
  std::int64_t bytes = 0;              ///< of the rank that holds most, overhead included
  double relative_step_time = 1.0;     ///< predicted, of the config as it is
};

struct MemoryFit {
  std::int64_t bytes = 0;  ///< of the rank that holds most, overhead included
  bool fits = false;
  /// Where it does not fit: the smallest changes that make it fit, cheapest first. Empty: none of
  /// those that were tried does.
  std::vector<Remedy> remedies;
  /// Where it fits: the largest micro-batch, in sequences, with the accumulation as it is, and the
  /// largest that keeps the step's batch.
  std::int64_t largest_micro_batch = 0;
  std::int64_t largest_of_this_batch = 0;
};

MemoryFit examine_fit(const FitQuestion& question);

/// The bytes of the rank that holds most, overhead included, which examine_fit() compares.
std::int64_t most_bytes(const Config& config, int world_size, const OverheadOf& overhead);

}  // namespace dstrain
