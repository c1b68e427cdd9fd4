// A model's own file where a run's is expected: a Hugging Face config.json, or the folder that
// holds it. It says nothing about data, batch and steps. An estimate takes it, with stand-ins for
// what is missing; a run refuses it and says where it belongs. Nothing else in the folder is
// opened.
#pragma once

#include <string>
#include <string_view>

#include "engine/config/config_problems.h"
#include "engine/config/json_text.h"
#include "engine/config/loaded_config.h"

namespace dstrain {

struct ConfigTree {
  std::string file;       ///< that was read: of a folder, its config.json
  JsonNode root;          ///< of a run; a model's keys are under "model"
  bool is_model = false;  ///< the file describes a model and no run
};

/// Reads the file and applies the overrides; no key is checked yet. Throws ConfigError where the
/// file is not JSON; other mistakes join `problems`.
ConfigTree read_config_tree(const std::string& file,
                            const LoadOptions& options,
                            ConfigProblems& problems);

/// The same for the text of a run's file.
ConfigTree config_tree_of(std::string_view text,
                          const std::string& file,
                          const LoadOptions& options,
                          ConfigProblems& problems);

/// Checks and reads all keys. What a problem has spoilt keeps its default.
LoadedConfig load_config_tree(ConfigTree tree,
                              const LoadOptions& options,
                              ConfigProblems& problems);

/// Gives a model's tree the values that a run needs and no override gives, each with an origin
/// "stand-in: …". Returns the notice that names them.
std::string add_stand_ins(ConfigTree& tree);

}  // namespace dstrain
