// Checks that a run's data, the weights it begins from and its model belong together. Each says,
// where it can, which tokenizer its ids come from; those that say nothing (token files made
// elsewhere) are trusted.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/checkpoint/foreign/huggingface/companions.h"
#include "engine/config/config.h"

namespace dstrain {

/// A checkpoint that a run resumes from.
struct ResumedFrom {
  std::filesystem::path path;
  TrainingState training;
};

/// Returns a sentence that says which two contradict each other, and what to do; nothing where none
/// do, as far as this machine sees the files. `from` is nullptr where the run begins at step 0.
std::optional<std::string> tokenizer_conflict(const Config& config, const ResumedFrom* from);

/// The record of a run's tokenizer in its checkpoints, and the files that they take along.
struct RunTokenizer {
  std::optional<TokenizerIdentity> identity;  ///< of the training data, else of `from`
  std::map<std::string, std::string> data;    ///< TrainingState::data
  Companions files;
};
RunTokenizer tokenizer_of_run(const Config& config, const ResumedFrom* from);

/// The tokenizer of the first of the training data's token files that names one.
std::optional<TokenizerIdentity> tokenizer_of_data(const DataConfig& data);

/// TrainingState::data of this run's files.
std::map<std::string, std::string> data_contents(const DataConfig& data);

}  // namespace dstrain
