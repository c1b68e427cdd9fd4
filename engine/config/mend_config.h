// Corrects in a config's text everything that can be corrected without asking: `dstrain launch
// CONFIG --write-fixed FILE`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/config/config_json.h"
#include "engine/config/config_problems.h"

namespace dstrain {

struct MendedConfig {
  std::string text;
  std::vector<std::string> changes;  ///< a line each: what was wrong, and the new value
  std::vector<ConfigProblem> left;   ///< what only the user can mend; then the text is not accepted
};

/// Resolves a loaded config for the ranks of the run; problems join the list.
using ResolveConfig = std::function<void(LoadedConfig&, ConfigProblems&)>;

/// `text` is that of `file`. Overrides go into the text first; the result needs none. Throws
/// ConfigError where the text is not JSON or an override not KEY=VALUE.
MendedConfig mend_config(const std::string& text,
                         const std::string& file,
                         const LoadOptions& options,
                         const ResolveConfig& resolve);

}  // namespace dstrain
