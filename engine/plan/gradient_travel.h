// GradientTravel: what data-parallel ranks exchange in one update, where that is not the same in
// all of them. The optimizers of the 1-bit family, and compressed gradients, begin with sums of
// gradients; later what ranks need of each other travels as signs or otherwise coded, or not in
// every update. A pure function of the config and the update's number, so that plans, prices and
// ranks agree without a word.
#pragma once

#include <cstdint>

#include "engine/config/compression_config.h"
#include "engine/config/optimizer_config.h"

namespace dstrain {

enum class GradientTravel : std::uint8_t {
  kSummed,  ///< gradients are summed over the ranks
  kCoded,   ///< signs of momenta or gradients go round (SignLayout), or compressed gradients
            ///< (CompressionLayout)
  kStays    ///< nothing: each rank goes on by its own gradients
};

/// 0/1 Adam's choice (Lu et al. 2022, arXiv 2202.06009, section 6, with DeepSpeed's parameters).
/// Updates are counted from 1.
///   up to freeze_step   every interval-th update sums gradients and moves the variance, the others
///                       exchange signs of gradients; after var_update_scaler sums the interval
///                       doubles
///   after it            every interval-th update the ranks agree by signs of what they did since
///                       the last time; after local_step_scaler updates the interval doubles, up to
///                       local_step_clipper
class ZeroOneSchedule {
 public:
  explicit ZeroOneSchedule(const OptimizerConfig& config) : config_(config) {}

  [[nodiscard]] bool is_local(std::int64_t update) const { return update > config_.freeze_step; }
  [[nodiscard]] GradientTravel travel(std::int64_t update) const;
  /// Returns how many of updates 1, …, `updates` travel so.
  [[nodiscard]] std::int64_t count(GradientTravel travel, std::int64_t updates) const;

 private:
  /// Updates [begin, end) that have one interval.
  struct Stage {
    std::int64_t begin = 1;
    std::int64_t end = 1;
    std::int64_t interval = 1;
  };
  /// Calls visit(stage) for those that updates 1, …, `updates` go through.
  template <typename Visit>
  void for_each_stage(std::int64_t updates, Visit&& visit) const;

  const OptimizerConfig& config_;
};

/// Returns what the optimizer lets ranks exchange in update 1, 2, …
GradientTravel travel_of(const OptimizerConfig& config, std::int64_t update);
/// The same where gradients may be compressed.
GradientTravel travel_of(const OptimizerConfig& config,
                         const CompressionConfig& compression,
                         std::int64_t update);
/// Returns how many of updates 1, …, `updates` travel so.
std::int64_t count_travel(const OptimizerConfig& config,
                          const CompressionConfig& compression,
                          GradientTravel travel,
                          std::int64_t updates);

}  // namespace dstrain
