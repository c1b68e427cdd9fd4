// Sampler: finds which sequence of which source is sample `index` of the run. It is a pure function
// of (seed, index): the order does not depend on the number of ranks, and resuming needs the step
// only. No table, no shuffling at start: a data set of 10^12 tokens opens as fast as one of 10^3.
#pragma once

#include <cstdint>
#include <vector>

namespace dstrain {

/// Sequence `index` of a source.
struct DrawnSequence {
  int source = 0;
  std::int64_t index = 0;
};

class Sampler {
 public:
  /// `num_sequences`, at least 1 each, and `weights`: one per source. Every epoch of a source
  /// visits each of its sequences once, in an order of its own. Throws ConfigError if a weight is
  /// not positive.
  Sampler(const std::vector<std::int64_t>& num_sequences,
          const std::vector<double>& weights,
          std::uint64_t seed);

  [[nodiscard]] DrawnSequence draw(std::int64_t sample) const;
  /// How often the first `samples` samples of the run go through each source.
  [[nodiscard]] std::vector<double> epochs(std::int64_t samples) const;
  /// The number of sequences of all sources: one epoch.
  [[nodiscard]] std::int64_t sequences_per_epoch() const;

 private:
  struct Source {
    std::int64_t num_sequences;
    std::int64_t share_begin;  ///< its part of the mixing period: [share_begin, share_end)
    std::int64_t share_end;
  };
  /// The number of samples among the first `samples` of the run that come from the source.
  [[nodiscard]] std::int64_t taken(const Source& source, std::int64_t samples) const;

  std::vector<Source> sources_;
  std::uint64_t seed_;
};

}  // namespace dstrain
