// PricedRun: says what a change of a run's config is expected to save, by the price of a step
// (step_price.h). The price's two rates are first fitted to what was measured: arithmetic to the
// time that ranks compute, bandwidth to the time in which they wait for bytes. It errs where the
// change meets what neither shows, but unlike a bound it knows what comes instead of what it saves.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cmd/runs/run_overview.h"
#include "cmd/why/step_account.h"

namespace dstrain {

class PricedRun {
 public:
  PricedRun(const RunOverview& run, const StepAccount& account);

  /// The share of the time of a sequence that KEY=VALUEs save, below 0 where they cost; none where
  /// the run's config cannot be read, or they do not go with it.
  [[nodiscard]] std::optional<double> gain(const std::vector<std::string>& sets) const;

 private:
  struct Rates {
    double flops = 0.0;
    double bytes = 0.0;  ///< a second, between ranks
  };
  /// Seconds for a sequence; throws ConfigError.
  [[nodiscard]] double price(const std::vector<std::string>& sets, const Rates& rates) const;
  void fit(double computing, double communicating);

  std::string config_;
  int ranks_ = 0;
  int ranks_per_host_ = 1;
  Rates rates_;
  double now_ = 0.0;  ///< seconds for a sequence; 0: not known
};

}  // namespace dstrain
