// Flags as people write them: "--num-gpus" for "--num_gpus", and what is meant by one that does not
// exist, or by a value that is none.
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

/// Throws ConfigError where there is no such command, with the nearest.
const CommandRow& find_command(const ProgramTable& program, const std::string& name);

/// Says in one sentence why CLI11 refused the command line.
std::string sentence_of(const CLI::ParseError& error, const CLI::App& app);

}  // namespace dstrain
