// Two questions for sample k. Which source? The period [0, 2^24) is cut into one interval per
// source, as long as its weight; the van der Corput sequence (k's low 24 bits reversed) hits the
// intervals in turn, so that after any number of samples each source is within a few samples of
// its share, and after 2^24 exactly at it. Which window of it? The number j of earlier samples
// that went to the same source has a closed form for this sequence (one term per bit of k), so
// sample k is window permutation(j mod n) of epoch j / n, n windows being in the source.
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

Sampler::Sampler(std::vector<std::int64_t> num_tokens,
                 std::vector<double> weights,
                 std::int64_t sequence_length,
                 std::uint64_t seed)
    : sequence_length_(sequence_length), seed_(seed) {
  check(!num_tokens.empty() && num_tokens.size() == weights.size(), "{} sources with {} weights",
        num_tokens.size(), weights.size());
  check(static_cast<std::int64_t>(num_tokens.size()) < kPeriod / 2, "{} sources",
        num_tokens.size());
  check(sequence_length > 0, "sequence length {}", sequence_length);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] > 0.0) || !std::isfinite(weights[i])) {
      throw ConfigError(
          fmt::format("/data: source {} has weight {}, expected a positive number (leave a source "
                      "out of the list to skip it)",
                      i, weights[i]));
    }
  }
  const std::vector<std::int64_t> ends = share_ends(weights);
  for (std::size_t i = 0; i < num_tokens.size(); ++i) {
    const std::int64_t num_windows = (num_tokens[i] - 1) / sequence_length;
    if (num_windows < 1) {
      throw ConfigError(
          fmt::format("/data/sequence_length: {} needs {} tokens for a sample and its targets, "
                      "source {} has {}",
                      sequence_length, sequence_length + 1, i, num_tokens[i]));
    }
    sources_.push_back({num_windows, i == 0 ? 0 : ends[i - 1], ends[i]});
  }
}

Window Sampler::window(std::int64_t sample_index) const {
  check(sample_index >= 0, "sample {}", sample_index);
  // One source takes every sample; the general case below would say the same, slower.
  std::size_t chosen = 0;
  std::int64_t ordinal = sample_index;
  if (sources_.size() > 1) {
    const std::int64_t period = sample_index / kPeriod;
    const std::int64_t k = sample_index % kPeriod;
    const auto source =
        std::upper_bound(sources_.begin(), sources_.end(), van_der_corput(k),
                         [](std::int64_t p, const Source& s) { return p < s.share_end; });
    chosen = static_cast<std::size_t>(source - sources_.begin());
    ordinal = period * (source->share_end - source->share_begin) +
              count_below(k, source->share_end) - count_below(k, source->share_begin);
  }
  const std::int64_t num_windows = sources_[chosen].num_windows;
  const std::int64_t epoch = ordinal / num_windows;
  const auto stream =
      (static_cast<std::uint64_t>(chosen) << 40) ^ static_cast<std::uint64_t>(epoch);
  const std::int64_t position = permuted(ordinal % num_windows, num_windows, seed_, stream);
  return {static_cast<int>(chosen), position * sequence_length_};
}

std::int64_t Sampler::windows_per_epoch() const {
  std::int64_t total = 0;
  for (const Source& source : sources_) {
    total += source.num_windows;
  }
  return total;
}

}  // namespace dstrain
