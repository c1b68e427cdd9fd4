// Sampler: which window of the token files is sample `index` of the run. A pure function of
// (seed, index): the order does not depend on the number of ranks, and resuming needs the step
// only. No table, no shuffling at start: a data set of 10^12 tokens opens as fast as one of 10^3.
#pragma once

#include <cstdint>
#include <vector>

namespace dstrain {

/// A window of `sequence_length` inputs and as many targets, shifted by one: tokens
/// [begin, begin + sequence_length] of file `source`.
struct Window {
  int source = 0;
  std::int64_t begin = 0;
};

class Sampler {
 public:
  /// `num_tokens` and `weights`: one per source. A source's windows lie side by side (stride
  /// sequence_length); every epoch visits each of them once, in an order of its own. Throws
  /// ConfigError if a source is shorter than one window, or a weight is not positive.
  Sampler(std::vector<std::int64_t> num_tokens,
          std::vector<double> weights,
          std::int64_t sequence_length,
          std::uint64_t seed);

  [[nodiscard]] Window window(std::int64_t sample_index) const;
  /// Windows of all sources: one epoch.
  [[nodiscard]] std::int64_t windows_per_epoch() const;
  [[nodiscard]] std::int64_t sequence_length() const { return sequence_length_; }

 private:
  struct Source {
    std::int64_t num_windows;
    std::int64_t share_begin;  ///< its part of the mixing period: [share_begin, share_end)
    std::int64_t share_end;
  };
  std::vector<Source> sources_;
  std::int64_t sequence_length_;
  std::uint64_t seed_;
};

}  // namespace dstrain
