// Takes flags as people write them, "--num-gpus" for "--num_gpus", and suggests what was meant by a
// flag or a value that does not exist.
#pragma once

#include <string>
#include <vector>

#include "cmd/help/command_table.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace dstrain {

/// A command's arguments with every flag in its known spelling. Throws ConfigError, one sentence
/// with the nearest known flag or value, where there is no such flag, or where its value cannot be
/// right.
std::vector<std::string> spell_flags(const CommandRow& command,
                                     const std::vector<std::string>& arguments);

/// Throws ConfigError, with the nearest name, where there is no such command.
const CommandRow& find_command(const ProgramTable& program, const std::string& name);

/// Says in one sentence why CLI11 refused the command line.
std::string sentence_of(const CLI::ParseError& error, const CLI::App& app);

}  // namespace dstrain
