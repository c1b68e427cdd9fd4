// The sampler answers two questions about sample k. Which source does it come from? The period [0,
// 2^24) is cut into one interval per source, as long as its weight; the van der Corput sequence
// (k's low 24 bits reversed) hits the intervals in turn, so that after any number of samples each
// source is within a few samples of its share, and after 2^24 exactly at it. Which sequence of the
// source is it? The number j of earlier samples that went to the same source has a closed form for
// this one (one term per bit of k), so sample k is sequence permutation(j mod n) of epoch j / n, n
// sequences being in the source.
#include "engine/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "engine/config/config_error.h"
#include "engine/data/permutation.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr int kPeriodBits = 24;
constexpr std::int64_t kPeriod = std::int64_t{1} << kPeriodBits;

std::int64_t van_der_corput(std::int64_t k) {
  std::int64_t reversed = 0;
  for (int bit = 0; bit < kPeriodBits; ++bit) {
    reversed = (reversed << 1) | ((k >> bit) & 1);
  }
  return reversed;
}

/// How many of van_der_corput(0 … k - 1) are below `limit`, for k ≤ kPeriod. [0, k) is a union of
/// aligned runs of 2^t; such a run is an arithmetic progression with step kPeriod / 2^t.
std::int64_t count_below(std::int64_t k, std::int64_t limit) {
  std::int64_t count = 0;
  std::int64_t run_begin = 0;
  for (int t = kPeriodBits; t >= 0; --t) {
    if (((k >> t) & 1) == 0) {
      continue;
    }
    const std::int64_t first = van_der_corput(run_begin);  // the least of its run
    const std::int64_t step = kPeriod >> t;
    count += first < limit ? (limit - first + step - 1) / step : 0;
    run_begin += std::int64_t{1} << t;
  }
  return count;
}

/// Weights as whole parts of the period, each at least 1, together exactly kPeriod: the ends of the
/// cumulative weights, rounded, then pushed apart where a source would have got nothing.
std::vector<std::int64_t> share_ends(const std::vector<double>& weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const auto num_sources = static_cast<std::int64_t>(weights.size());
  std::vector<std::int64_t> ends;
  double sum = 0.0;
  std::int64_t before = 0;
  for (std::int64_t i = 0; i < num_sources; ++i) {
    sum += weights[static_cast<std::size_t>(i)];
    const auto rounded =
        static_cast<std::int64_t>(std::llround(sum / total * static_cast<double>(kPeriod)));
    before = std::clamp(rounded, before + 1, kPeriod - (num_sources - 1 - i));
    ends.push_back(before);
  }
  ends.back() = kPeriod;
  return ends;
}

}  // namespace

Sampler::Sampler(const std::vector<std::int64_t>& num_sequences,
                 const std::vector<double>& weights,
                 std::uint64_t seed)
    : seed_(seed) {
  check(!num_sequences.empty() && num_sequences.size() == weights.size(),
        "{} sources with {} weights", num_sequences.size(), weights.size());
  check(static_cast<std::int64_t>(num_sequences.size()) < kPeriod / 2, "{} sources",
        num_sequences.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] > 0.0) || !std::isfinite(weights[i])) {
      throw ConfigError(
          fmt::format("/data: source {} has weight {}, expected a positive number (leave a source "
                      "out of the list to skip it)",
                      i, weights[i]));
    }
  }
  const std::vector<std::int64_t> ends = share_ends(weights);
  for (std::size_t i = 0; i < num_sequences.size(); ++i) {
    check(num_sequences[i] > 0, "source {} has {} sequences", i, num_sequences[i]);
    sources_.push_back({num_sequences[i], i == 0 ? 0 : ends[i - 1], ends[i]});
  }
}

/// A single source takes every sample; the general case would say the same, only slower.
std::int64_t Sampler::taken(const Source& source, std::int64_t samples) const {
  if (sources_.size() == 1) {
    return samples;
  }
  const std::int64_t k = samples % kPeriod;
  return samples / kPeriod * (source.share_end - source.share_begin) +
         count_below(k, source.share_end) - count_below(k, source.share_begin);
}

std::vector<double> Sampler::epochs(std::int64_t samples) const {
  std::vector<double> epochs;
  for (const Source& source : sources_) {
    epochs.push_back(static_cast<double>(taken(source, samples)) /
                     static_cast<double>(source.num_sequences));
  }
  return epochs;
}

DrawnSequence Sampler::draw(std::int64_t sample) const {
  check(sample >= 0, "sample {}", sample);
  std::size_t chosen = 0;
  if (sources_.size() > 1) {
    const auto source =
        std::upper_bound(sources_.begin(), sources_.end(), van_der_corput(sample % kPeriod),
                         [](std::int64_t p, const Source& s) { return p < s.share_end; });
    chosen = static_cast<std::size_t>(source - sources_.begin());
  }
  const std::int64_t ordinal = taken(sources_[chosen], sample);
  const std::int64_t num_sequences = sources_[chosen].num_sequences;
  const std::int64_t epoch = ordinal / num_sequences;
  const auto stream =
      (static_cast<std::uint64_t>(chosen) << 40) ^ static_cast<std::uint64_t>(epoch);
  return {static_cast<int>(chosen),
          permuted(ordinal % num_sequences, num_sequences, seed_, stream)};
}

std::int64_t Sampler::sequences_per_epoch() const {
  std::int64_t total = 0;
  for (const Source& source : sources_) {
    total += source.num_sequences;
  }
  return total;
}

}  // namespace dstrain
