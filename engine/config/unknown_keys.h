// Finds the keys of a config that are in no table, and says what was probably meant.
#pragma once

#include <string>
#include <vector>

#include "engine/config/config_problems.h"
#include "engine/config/json_text.h"

namespace dstrain {

/// Adds unknown keys, and blocks that are not objects, to `problems`. With `allow`, unknown keys
/// become lines of `notices` instead.
void check_known_keys(const JsonNode& root,
                      bool allow,
                      std::vector<std::string>& notices,
                      ConfigProblems& problems);

/// What was probably meant by an unknown key.
struct KeySuggestion {
  std::string text;  ///< "did you mean …?"; empty if nothing is near
  std::string path;  ///< of the key or block that is meant
};
/// `block` "" is the top level.
KeySuggestion suggest_key(const std::string& block, const std::string& name);

/// Whether some key, or a block of keys, has this path.
bool is_known_path(const std::string& path);

}  // namespace dstrain
