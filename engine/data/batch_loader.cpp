// B sequences of the micro-batch, T tokens of a sequence
#include "engine/data/batch_loader.h"

#include <utility>

#include <fmt/format.h>

#include "engine/config/config_error.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

/// The sampler deals out samples: a source whose sequences are less full than another's gets more
/// of them for the same share of the tokens.
Sampler make_sampler(const std::vector<std::unique_ptr<Sequences>>& sequences,
                     const std::vector<DataSource>& sources,
                     WeightUnit weights_by,
                     std::uint64_t seed) {
  std::vector<std::int64_t> counts;
  std::vector<double> weights;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    counts.push_back(sequences[i]->count());
    weights.push_back(weights_by == WeightUnit::kTokens
                          ? sources[i].weight / sequences[i]->mean_tokens()
                          : sources[i].weight);
  }
  return {counts, weights, seed};
}

}  // namespace

BatchLoader::BatchLoader(const DataConfig& data,
                         const std::vector<DataSource>& sources,
                         std::int64_t vocab_size,
                         std::uint64_t seed)
    : sequence_length_(data.sequence_length),
      sources_([&] {
        std::vector<std::unique_ptr<Sequences>> opened;
        for (const DataSource& source : sources) {
          opened.push_back(open(data, source, vocab_size));
        }
        return opened;
      }()),
      sampler_(make_sampler(sources_, sources, data.weights_by, seed)) {}

std::unique_ptr<Sequences> BatchLoader::open(const DataConfig& data,
                                             const DataSource& source,
                                             std::int64_t vocab_size) {
  auto file = TokenFile::open(source.prefix, vocab_size);
  if (!file->has_hashes()) {
    without_hashes_.push_back(source.prefix);
  }
  if (data.samples) {
    return take_samples(std::move(file), source.prefix, data);
  }
  if (data.pack == DocumentPack::kBestFit) {
    const bool ends_tell_documents_apart = data.document_attention || data.mask_document_ends;
    return pack_documents(std::move(file), source.prefix, sequence_length_,
                          ends_tell_documents_apart ? data.end_of_document : std::nullopt);
  }
  if (file->num_tokens() <= sequence_length_) {
    throw ConfigError(fmt::format(
        "{}: holds {} tokens, but a sample of data.sequence_length {} and its targets need {}",
        source.prefix, file->num_tokens(), sequence_length_, sequence_length_ + 1));
  }
  return cut_stream(std::move(file), sequence_length_);
}

void BatchLoader::load(std::int64_t first_sample,
                       std::span<std::int32_t> inputs,
                       std::span<std::int32_t> targets) const {
  const auto T = static_cast<std::size_t>(sequence_length_);
  check(inputs.size() == targets.size() && inputs.size() % T == 0,
        "{} inputs and {} targets for sequences of {}", inputs.size(), targets.size(), T);
  const auto B = static_cast<std::int64_t>(inputs.size() / T);
  // All sequences are asked for before the first is waited for: B reads in flight on a cold disk.
  for (std::int64_t b = 0; b < B; ++b) {
    const DrawnSequence drawn = sampler_.draw(first_sample + b);
    sequences(drawn.source).will_need(drawn.index);
  }
  for (std::int64_t b = 0; b < B; ++b) {
    const DrawnSequence drawn = sampler_.draw(first_sample + b);
    const auto row = static_cast<std::size_t>(b) * T;
    sequences(drawn.source).read(drawn.index, inputs.subspan(row, T), targets.subspan(row, T));
  }
}

std::vector<std::string> BatchLoader::reports() const {
  std::vector<std::string> lines;
  for (const auto& source : sources_) {
    if (std::string line = source->report(); !line.empty()) {
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

}  // namespace dstrain
