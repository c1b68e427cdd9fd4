// Finds what differs between the run that saved a checkpoint and the one that resumes from it. It
// is logged once, on resuming, since nothing else would show that a rate or the data have changed.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/config_json.h"
#include "engine/train/tokenizer_agreement.h"

namespace dstrain {

struct ChangedSetting {
  std::string key;   ///< of the config, or "ranks", "tokenizer"
  std::string then;  ///< "none" where it had none
  std::string now;
};

/// Returns nothing if the checkpoint does not record its run's settings, as an imported one.
/// Settings that do not affect what is computed (folders, intervals, threads) do not count, nor do
/// those that an older version had no key for, where they have their defaults now.
std::optional<std::vector<ChangedSetting>> changes_since(const TrainingState& then,
                                                         const LoadedConfig& now);

/// Lines for people: "BEGINNING; nothing differs from the run that saved it", or a table.
std::vector<std::string> describe_changes(const std::string& beginning,
                                          const TrainingState& then,
                                          const LoadedConfig& now);

}  // namespace dstrain
