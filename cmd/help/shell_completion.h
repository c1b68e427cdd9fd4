// Completions for shells: commands, flags, the words that a flag's value may be, files and
// folders, and the config's keys for --set. The text is to be sourced; it is made from the command
// table.
#pragma once

#include <string>
#include <vector>

#include "cmd/help/command_table.h"

namespace dstrain {

/// `keys` are what --set may name, "optimizer.params.lr".
std::string bash_completion(const ProgramTable& program, const std::vector<std::string>& keys);
std::string zsh_completion(const ProgramTable& program, const std::vector<std::string>& keys);
std::string fish_completion(const ProgramTable& program, const std::vector<std::string>& keys);

}  // namespace dstrain
