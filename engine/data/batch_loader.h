// BatchLoader: the tokens of one micro-batch of one data-parallel rank.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/config/data_config.h"
#include "engine/data/sampler.h"
#include "engine/data/sequences.h"

namespace dstrain {

class BatchLoader {
 public:
  /// Opens and checks every source: `sources` are those of `data` to train or to validate with.
  BatchLoader(const DataConfig& data,
              const std::vector<DataSource>& sources,
              std::int64_t vocab_size,
              std::uint64_t seed);

  /// Loads samples first_sample … first_sample + B - 1 as [B, T] inputs and targets, B =
  /// inputs.size() / T.
  void load(std::int64_t first_sample,
            std::span<std::int32_t> inputs,
            std::span<std::int32_t> targets) const;
  /// Sampler::epochs, by source.
  [[nodiscard]] std::vector<double> epochs(std::int64_t samples) const {
    return sampler_.epochs(samples);
  }
  /// Prefixes of the sources whose files have no hashes.
  [[nodiscard]] const std::vector<std::string>& without_hashes() const { return without_hashes_; }
  /// Sequences::report of the sources that have one.
  [[nodiscard]] std::vector<std::string> reports() const;
  [[nodiscard]] std::int64_t sequences_per_epoch() const { return sampler_.sequences_per_epoch(); }
  /// Sequences::samples of a sample, which here is a sequence.
  [[nodiscard]] std::vector<PlacedSample> samples(std::int64_t sample) const {
    const DrawnSequence drawn = draw(sample);
    return sequences(drawn.source).samples(drawn.index);
  }
  /// Where a sample is from.
  [[nodiscard]] DrawnSequence draw(std::int64_t sample) const { return sampler_.draw(sample); }
  [[nodiscard]] int num_sources() const { return static_cast<int>(sources_.size()); }
  [[nodiscard]] const Sequences& sequences(int source) const {
    return *sources_.at(static_cast<std::size_t>(source));
  }

 private:
  [[nodiscard]] std::unique_ptr<Sequences> open(const DataConfig& data,
                                                const DataSource& source,
                                                std::int64_t vocab_size);

  std::int64_t sequence_length_;
  std::vector<std::string> without_hashes_;
  std::vector<std::unique_ptr<Sequences>> sources_;
  Sampler sampler_;
};

}  // namespace dstrain
