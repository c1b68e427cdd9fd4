// CommandTable: the commands and flags as data, read off the CLI11 app once, so that help,
// completions, the manual page and did-you-mean cannot differ from what is parsed.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace dstrain {

/// A flag, or a positional argument.
struct FlagRow {
  /// "-H", "--hostfile"; for a positional argument its name alone: "CONFIG". Spellings that differ
  /// only in '-' and '_' count as one name, the first of them.
  std::vector<std::string> names;
  std::string value;  ///< "FILE", "N", "ssh|slurm"; empty: it is a switch
  std::string text;
  std::string group;                 ///< a headline; empty: not shown
  std::vector<std::string> choices;  ///< the words that its value may be
  bool takes_other_values = false;   ///< values other than the choices are valid too: "bytes|FILE"
  std::string type;                  ///< CLI11's name for what it checks: "INT:INT in [1 - 65535]"
  bool is_required = false;
  bool is_argument = false;  ///< it is positional
};

struct CommandRow {
  std::string name;
  std::string summary;
  std::string footer;
  std::vector<FlagRow> flags;  ///< in the order in which they were added
  bool is_hidden = false;      ///< people do not use it by hand
};

struct ProgramTable {
  CommandRow program;
  std::vector<CommandRow> commands;
};

CommandRow describe_command(const CLI::App& command);
ProgramTable describe_program(const CLI::App& app);

/// The headlines of its flags that are shown, in their order.
std::vector<std::string> groups_of(const CommandRow& command);

/// "-H, --hostfile FILE".
std::string signature_of(const FlagRow& flag);

/// The completions that a shell offers for the flag's value.
enum class ValueKind { kNone, kChoice, kFile, kFolder, kKey, kOther };
ValueKind kind_of(const FlagRow& flag);

/// The text's first clause, short enough for a line beside the name.
std::string first_clause(const std::string& text);

}  // namespace dstrain
