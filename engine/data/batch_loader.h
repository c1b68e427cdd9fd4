// BatchLoader: the tokens of one micro-batch of one data-parallel rank.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/config/data_config.h"
#include "engine/data/sampler.h"
#include "engine/data/token_dataset.h"

namespace dstrain {

class BatchLoader {
 public:
  /// Opens and checks every source.
  BatchLoader(const std::vector<DataSource>& sources,
              std::int64_t sequence_length,
              std::int64_t vocab_size,
              std::uint64_t seed);

  /// Samples first_sample … first_sample + B - 1 as [B, T] inputs and targets, B = inputs.size() /
  /// T.
  void load(std::int64_t first_sample,
            std::span<std::int32_t> inputs,
            std::span<std::int32_t> targets) const;
  [[nodiscard]] std::int64_t num_tokens() const;
  /// Prefixes of the sources whose files have no hashes.
  [[nodiscard]] const std::vector<std::string>& without_hashes() const { return without_hashes_; }
  [[nodiscard]] std::int64_t windows_per_epoch() const { return sampler_.windows_per_epoch(); }

 private:
  std::vector<std::unique_ptr<TokenFile>> files_;
  std::vector<std::string> without_hashes_;
  std::int64_t sequence_length_;
  Sampler sampler_;
};

}  // namespace dstrain
