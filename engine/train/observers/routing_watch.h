// RoutingWatch: warns, once for each layer, of a router that has collapsed: one that sends no token
// to an expert, or most tokens to one. It looks at a hundred steps together, since a router may
// neglect an expert for a moment, and be off balance in the first ones.
//
//   idle       not chosen in kSteps steps, where an even router would have chosen it a hundred
//              times or more
//   overrun    chosen by more than half of the tokens of kSteps steps, and more than twice as often
//              as the mean
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/train/observers/run_observer.h"

namespace dstrain {

class RoutingWatch final : public RunObserver {
 public:
  static constexpr std::int64_t kSteps = 100;

  void on_step(const StepMetrics& metrics, bool is_last) override;

 private:
  std::map<std::int64_t, LayerRouting> sums_;  // by layer, of the steps since the last look
  std::int64_t steps_ = 0;
  std::set<std::int64_t> warned_;  // layers
};

/// "3 of 64 experts (5, 9, 12) were chosen by none of 819200 tokens, …": what is wrong with the
/// routing of a layer over some steps; empty: nothing.
std::string collapse_text(const LayerRouting& routing);

}  // namespace dstrain
