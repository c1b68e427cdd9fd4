// What differs between the run that saved a checkpoint and the one that goes on from it? Told once,
// where it goes on, since nothing else would show that a rate or the data are other ones.
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

/// None if the checkpoint does not say how its run was set: an imported one. Settings that have no
/// part in what is computed (folders, intervals, threads) do not count, nor do those that an older
/// version had no key for, where they have their defaults now.
std::optional<std::vector<ChangedSetting>> changes_since(const TrainingState& then,
                                                         const LoadedConfig& now);

/// Lines for people: "BEGINNING; nothing differs from the run that saved it", or a table.
std::vector<std::string> describe_changes(const std::string& beginning,
                                          const TrainingState& then,
                                          const LoadedConfig& now);

}  // namespace dstrain
