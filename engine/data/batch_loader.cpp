// B sequences of the micro-batch, T tokens of a sequence
#include "engine/data/batch_loader.h"

#include <fmt/format.h>

#include "engine/config/config_error.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

std::vector<std::unique_ptr<TokenFile>> open_all(const std::vector<DataSource>& sources,
                                                 std::int64_t sequence_length,
                                                 std::int64_t vocab_size) {
  std::vector<std::unique_ptr<TokenFile>> files;
  for (const DataSource& source : sources) {
    files.push_back(TokenFile::open(source.prefix, vocab_size));
    if (files.back()->num_tokens() <= sequence_length) {
      throw ConfigError(fmt::format(
          "{}: holds {} tokens, a sample of data.sequence_length {} and its targets need {}",
          source.prefix, files.back()->num_tokens(), sequence_length, sequence_length + 1));
    }
  }
  return files;
}

Sampler make_sampler(const std::vector<std::unique_ptr<TokenFile>>& files,
                     const std::vector<DataSource>& sources,
                     std::int64_t sequence_length,
                     std::uint64_t seed) {
  std::vector<std::int64_t> num_tokens;
  std::vector<double> weights;
  for (std::size_t i = 0; i < files.size(); ++i) {
    num_tokens.push_back(files[i]->num_tokens());
    weights.push_back(sources[i].weight);
  }
  return {std::move(num_tokens), std::move(weights), sequence_length, seed};
}

}  // namespace

BatchLoader::BatchLoader(const std::vector<DataSource>& sources,
                         std::int64_t sequence_length,
                         std::int64_t vocab_size,
                         std::uint64_t seed)
    : files_(open_all(sources, sequence_length, vocab_size)),
      sequence_length_(sequence_length),
      sampler_(make_sampler(files_, sources, sequence_length, seed)) {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    if (!files_[i]->has_hashes()) {
      without_hashes_.push_back(sources[i].prefix);
    }
  }
}

void BatchLoader::load(std::int64_t first_sample,
                       std::span<std::int32_t> inputs,
                       std::span<std::int32_t> targets) const {
  const auto T = static_cast<std::size_t>(sequence_length_);
  check(inputs.size() == targets.size() && inputs.size() % T == 0,
        "{} inputs and {} targets for sequences of {}", inputs.size(), targets.size(), T);
  const auto B = static_cast<std::int64_t>(inputs.size() / T);
  // All windows are asked for before the first is waited for: B reads in flight on a cold disk.
  for (std::int64_t b = 0; b < B; ++b) {
    const Window window = sampler_.window(first_sample + b);
    files_[static_cast<std::size_t>(window.source)]->will_need(window.begin, sequence_length_ + 1);
  }
  for (std::int64_t b = 0; b < B; ++b) {
    const Window window = sampler_.window(first_sample + b);
    const TokenFile& file = *files_[static_cast<std::size_t>(window.source)];
    const auto row = static_cast<std::size_t>(b) * T;
    file.read(window.begin, inputs.subspan(row, T));
    file.read(window.begin + 1, targets.subspan(row, T));
  }
}

std::int64_t BatchLoader::num_tokens() const {
  std::int64_t total = 0;
  for (const auto& file : files_) {
    total += file->num_tokens();
  }
  return total;
}

}  // namespace dstrain
