// BatchRamp: a batch that grows at the start of a run (Brown et al. 2020, "Language models are
// few-shot learners", appendix B), counted as Megatron-LM's --rampup-batch-size counts it.
#pragma once

#include <cstdint>

namespace dstrain {

struct BatchRamp {
  std::int64_t start = 1;      ///< sequences of the first steps
  std::int64_t increment = 1;  ///< by which the batch grows, a whole number of times
  std::int64_t samples = 1;    ///< of the run, over which it grows to the whole batch

  /// The number of times that the batch grows until it is `whole`.
  [[nodiscard]] std::int64_t increments(std::int64_t whole) const {
    return (whole - start) / increment;
  }
  /// The number of sequences of the step after the first `consumed` samples of the run: each batch
  /// but the whole one gets an equal share of `samples`. Divided as Megatron-LM divides, in
  /// doubles.
  [[nodiscard]] std::int64_t batch_at(std::int64_t consumed, std::int64_t whole) const {
    const std::int64_t growth = increments(whole);
    if (consumed > samples || growth == 0) {
      return whole;
    }
    const double share = static_cast<double>(samples) / static_cast<double>(growth);
    const auto times = static_cast<std::int64_t>(static_cast<double>(consumed) / share);
    return times >= growth ? whole : start + times * increment;
  }

  bool operator==(const BatchRamp&) const = default;
};

}  // namespace dstrain
