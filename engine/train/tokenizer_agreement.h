// Do a run's data, the weights it begins from and its model belong together? Each says, where it
// can, which tokenizer its ids are of; what says nothing (token files made elsewhere) is believed.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/checkpoint/foreign/huggingface/companions.h"
#include "engine/config/config.h"

namespace dstrain {

/// A checkpoint that a run goes on from.
struct ResumedFrom {
  std::filesystem::path path;
  TrainingState training;
};

/// A sentence that says who contradicts whom, with the way on; none where nothing does, as far as
/// this machine sees the files. `from`: nullptr where the run begins at step 0.
std::optional<std::string> tokenizer_conflict(const Config& config, const ResumedFrom* from);

/// What a run's checkpoints say of its tokens, and the files that they take along.
struct RunTokenizer {
  std::optional<TokenizerIdentity> identity;  ///< of the training data, else of `from`
  std::map<std::string, std::string> data;    ///< TrainingState::data
  Companions files;
};
RunTokenizer tokenizer_of_run(const Config& config, const ResumedFrom* from);

/// Of the first of the training data's token files that says it.
std::optional<TokenizerIdentity> tokenizer_of_data(const DataConfig& data);

/// TrainingState::data of this run's files.
std::map<std::string, std::string> data_contents(const DataConfig& data);

}  // namespace dstrain
