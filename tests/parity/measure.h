// Measures one combination: how far it is from the single-rank run, and everything that must be
// exact about it, as sentences where it is not.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/parity/combination.h"

namespace dstrain::test {

/// Single-rank runs, each made once. Must be used by one thread only.
class ReferenceRuns {
 public:
  const TinyRun& of(const Combination& combination);

 private:
  std::map<std::string, TinyRun> runs_;
};

struct Measurement {
  double loss_difference = 0.0;  ///< relative, the worst of all steps and ranks
  double norm_difference = 0.0;
  bool learns = false;  ///< the last loss is below the first
  /// Deviations from the plan: bytes of memory, slots, traffic; copies that differ; elements that
  /// no rank holds. Empty if all is exact.
  std::vector<std::string> faults;

  [[nodiscard]] bool good(const Bound& bound) const {
    return loss_difference <= bound.loss && norm_difference <= bound.norm && learns &&
           faults.empty();
  }
};

std::vector<TinyRun> train_ranks(const Combination& combination);
Measurement measure(const Combination& combination, ReferenceRuns& references);

}  // namespace dstrain::test
