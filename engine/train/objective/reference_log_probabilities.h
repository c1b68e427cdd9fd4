// ReferenceLogProbabilities: how likely the model that a run of preferences began with finds the
// answers in its data. They are computed once, before the first step, and kept in the run's folder,
// so that no second model has to be held, and a resumed run finds the very numbers again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/batch_loader.h"
#include "engine/train/engine.h"
#include "engine/train/objective/row_pass.h"

namespace dstrain {

/// An answer in the data.
struct AnswerPlace {
  int source = 0;
  std::int64_t document = 0;
};

/// Collective. The log-probabilities, by the engine's model as it is, of the prompts of these
/// answers with answers to others (Sequences::read_mismatched): each the sum over its tokens.
/// Nothing where `goes_on` ended it (row_pass.h).
std::optional<std::vector<double>> mismatched_log_probabilities(
    Engine& engine,
    const BatchLoader& data,
    const std::vector<AnswerPlace>& answers,
    const GoesOn& goes_on = {});

class ReferenceLogProbabilities {
 public:
  /// None of them is known yet.
  explicit ReferenceLogProbabilities(const BatchLoader& data);

  /// Of an answer of which some token is trained: the sum over its tokens, nats.
  [[nodiscard]] double of(int source, std::int64_t document) const;
  [[nodiscard]] bool knows(int source, std::int64_t document) const;
  void set(const AnswerPlace& answer, double log_probability) {
    by_source_.at(static_cast<std::size_t>(answer.source))
        .at(static_cast<std::size_t>(answer.document)) = log_probability;
  }
  /// By source, then by document; a number that is none where it is not known.
  [[nodiscard]] const std::vector<std::vector<double>>& all() const { return by_source_; }

  /// The sequences of the first `samples` samples whose answers are not all known. Each counts
  /// once.
  [[nodiscard]] std::vector<DrawnSequence> unknown(const BatchLoader& data,
                                                   std::int64_t samples) const;
  /// Collective. Computes those of `sequences` by the engine's model as it is. Returns false, and
  /// none of them is known, where `goes_on` ended it (row_pass.h).
  bool compute(Engine& engine,
               const BatchLoader& data,
               const std::vector<DrawnSequence>& sequences,
               const GoesOn& goes_on = {});

 private:
  friend class ReferenceFile;
  std::vector<std::vector<double>> by_source_;
};

/// The file in a run's folder: a safetensors file with an f64 tensor for each source, which says
/// what its numbers depend on, and their checksum.
class ReferenceFile {
 public:
  /// `identity`: what the numbers depend on.
  ReferenceFile(std::filesystem::path path, std::string identity)
      : path_(std::move(path)), identity_(std::move(identity)) {}

  using Parts = std::map<std::string, ReferenceLogProbabilities*>;
  /// Collective. Rank 0 reads; all get what it found. Nothing becomes known where there is no such
  /// file, it cannot be read or is damaged, or it belongs to something else.
  void read(const Parts& parts, Communicator& world) const;
  /// On rank 0. Throws StorageError.
  void write(const Parts& parts) const;

 private:
  std::filesystem::path path_;
  std::string identity_;
};

}  // namespace dstrain
