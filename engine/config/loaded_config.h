// LoadedConfig: a config with the origin of each of its values and what is to be said of them, and
// how it is asked for. config_json.h loads one.
#pragma once

#include <string>
#include <vector>

#include "engine/config/config.h"

namespace dstrain {

struct LoadOptions {
  std::vector<std::string> overrides;  ///< "optimizer.params.lr=1e-4", as given to --set
  bool allow_unknown_keys = false;     ///< unknown keys become notices
  bool ignore_offload = false;         ///< keys that offload become warnings
  /// The file may be a model's config.json, or a folder that holds one: with stand-ins for what a
  /// run needs besides, named in a notice (model_config_file.h). For estimates, not for runs.
  bool accept_model_config = false;
};

/// One value of the config and where it came from.
struct ConfigValue {
  std::string path;    ///< "optimizer.params.lr"
  std::string value;   ///< as JSON text
  std::string origin;  ///< "quickstart.json:12:5" | "default[ (why)]" | "derived: …" | "--set"
};

struct LoadedConfig {
  std::string file;  ///< as given
  Config config;
  std::vector<ConfigValue> values;   ///< every key that has a value, in the order of the contract
  std::vector<std::string> notices;  ///< lines to print at start: keys without effect, choices made
  std::vector<std::string> warnings;  ///< likewise: what the file asks for and nobody does
};

}  // namespace dstrain
