// T tokens of a sample
#include "cmd/inspect/inspected_run.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>
#include <utility>

#include "engine/data/batch_loader.h"
#include "engine/data/document_index.h"
#include "engine/data/document_packing.h"
#include "engine/data/documents.h"
#include "kernels/ignored_target.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// A sample as the model is given it.
struct SampleTokens {
  std::vector<std::int32_t> inputs_T;
  std::vector<std::int32_t> targets_T;
  std::vector<std::int32_t> positions_T;
};

SampleTokens tokens_of(const BatchLoader& loader,
                       std::int64_t sample,
                       std::int64_t sequence_T,
                       const DocumentRules& documents) {
  const auto T = static_cast<std::size_t>(sequence_T);
  SampleTokens tokens{std::vector<std::int32_t>(T), std::vector<std::int32_t>(T),
                      std::vector<std::int32_t>(T)};
  loader.load(sample, tokens.inputs_T, tokens.targets_T);
  if (documents.masks_borders) {
    ignore_targets_behind(documents.end, tokens.inputs_T, tokens.targets_T);
  }
  if (documents.are_samples) {
    take_document_ends(tokens.targets_T, sequence_T, tokens.positions_T);
  } else if (documents.attention) {
    find_document_positions(tokens.inputs_T, sequence_T, documents.end, tokens.positions_T);
  } else {
    std::iota(tokens.positions_T.begin(), tokens.positions_T.end(), 0);
  }
  return tokens;
}

/// Takes a sample apart, from its first token to its last.
class Cutter {
 public:
  Cutter(const SampleTokens& tokens, const DocumentIndex* index) : tokens_(tokens), index_(index) {}

  /// The next tokens of the sample, which are `size` of the file's from `begin` on.
  void add_piece(std::int64_t begin, std::int64_t size) {
    const std::int64_t end = begin + size;
    while (begin < end) {
      InspectedStretch stretch{.first = begin};
      std::int64_t most = end - begin;
      if (index_ != nullptr) {
        const std::int64_t document = index_->document_of(begin);
        const std::int64_t left = index_->first_token(document + 1) - begin;
        stretch.document = document;
        stretch.first = begin - index_->first_token(document);
        most = std::min(most, left);
        const std::int64_t taken = take(stretch, most);
        stretch.ends_document = taken == left;
        begin += taken;
      } else {
        begin += take(stretch, most);
      }
      stretches_.push_back(std::move(stretch));
    }
  }

  /// The stretches, with the sample's other tokens as the last.
  std::vector<InspectedStretch> finish() {
    const std::size_t left = tokens_.inputs_T.size() - at_;
    if (left > 0) {
      InspectedStretch filling{.fills_up = true};
      append(filling, left);
      stretches_.push_back(std::move(filling));
    }
    return std::move(stretches_);
  }

 private:
  /// At most so many tokens, and none behind a border of attention, where positions begin anew.
  std::int64_t take(InspectedStretch& stretch, std::int64_t most) {
    std::size_t count = 1;
    while (static_cast<std::int64_t>(count) < most && tokens_.positions_T[at_ + count] != 0) {
      ++count;
    }
    append(stretch, count);
    return static_cast<std::int64_t>(count);
  }

  void append(InspectedStretch& stretch, std::size_t count) {
    for (const std::size_t end = at_ + count; at_ < end; ++at_) {
      stretch.ids.push_back(tokens_.inputs_T[at_]);
      stretch.positions.push_back(tokens_.positions_T[at_]);
      stretch.predicts.push_back(tokens_.targets_T[at_] != kIgnoredTarget ? 1 : 0);
    }
  }

  const SampleTokens& tokens_;
  const DocumentIndex* index_;
  std::size_t at_ = 0;
  std::vector<InspectedStretch> stretches_;
};

InspectedSample sample_of(const SampleTokens& tokens,
                          const DrawnSequence& drawn,
                          const Sequences& sequences,
                          const DocumentIndex* index) {
  const auto size = std::ssize(tokens.inputs_T);
  const std::vector<DocumentPacking::Piece> pieces =
      sequences.packing() != nullptr
          ? sequences.packing()->pieces(drawn.index)
          : std::vector<DocumentPacking::Piece>{{.begin = drawn.index * size, .size = size}};
  Cutter cutter(tokens, index);
  for (const DocumentPacking::Piece& piece : pieces) {
    cutter.add_piece(piece.begin, piece.size);
  }
  return {.source = drawn.source, .begin = pieces.front().begin, .stretches = cutter.finish()};
}

InspectedSource source_of(const std::string& prefix,
                          const Sequences& sequences,
                          const DocumentIndex* index) {
  InspectedSource source{.prefix = prefix, .tokens = sequences.tokens()};
  if (index != nullptr) {
    source.documents = index->num_documents();
  }
  if (const DocumentPacking* const packing = sequences.packing()) {
    source.packing = {.samples = packing->num_sequences(),
                      .cut_documents = packing->num_cut(),
                      .fill = packing->fill()};
  }
  return source;
}

}  // namespace

InspectedRun inspect_run(const SampleRules& rules, std::int64_t samples) {
  const DataConfig& data = rules.data;
  const BatchLoader loader(data, data.train, rules.vocab_size, rules.seed);
  require_document_end(data);  // where the files are, of which the loader has made sure
  const DocumentRules documents = document_rules(data);
  std::vector<fs::path> folders;
  for (const DataSource& source : data.train) {
    folders.push_back(fs::path(source.prefix).parent_path());
  }
  InspectedRun run{
      .rules = rules,
      .tokenizer = find_tokenizer("", folders.front(), {.compute = {}, .data_folders = folders})};
  std::vector<std::unique_ptr<DocumentIndex>> indices;
  for (std::size_t i = 0; i < data.train.size(); ++i) {
    const std::string& prefix = data.train[i].prefix;
    indices.push_back(DocumentIndex::open(prefix));
    run.sources.push_back(
        source_of(prefix, loader.sequences(static_cast<int>(i)), indices.back().get()));
  }
  const std::int64_t count = std::min(samples, loader.sequences_per_epoch());
  for (std::int64_t i = 0; i < count; ++i) {
    const DrawnSequence drawn = loader.draw(i);
    const SampleTokens tokens = tokens_of(loader, i, data.sequence_length, documents);
    run.samples.push_back(sample_of(tokens, drawn, loader.sequences(drawn.source),
                                    indices[static_cast<std::size_t>(drawn.source)].get()));
  }
  return run;
}

}  // namespace dstrain
