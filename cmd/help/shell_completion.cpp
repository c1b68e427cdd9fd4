#include "cmd/help/shell_completion.h"

#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dstrain {
namespace {

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

/// A word in single quotes, for sh and its relatives.
std::string quoted(const std::string& text) {
  return "'" + replaced(text, "'", "'\\''") + "'";
}

std::vector<const CommandRow*> shown_commands(const ProgramTable& program) {
  std::vector<const CommandRow*> shown;
  for (const CommandRow& command : program.commands) {
    if (!command.is_hidden) shown.push_back(&command);
  }
  return shown;
}

/// Names of commands, which is also what `dstrain help` takes.
std::vector<std::string> names_of(const ProgramTable& program) {
  std::vector<std::string> names;
  for (const CommandRow* command : shown_commands(program))
    names.push_back(command->name);
  return names;
}

bool takes_command(const FlagRow& flag) {
  return flag.is_argument && flag.names.front() == "COMMAND";
}

std::vector<std::string> flag_names(const CommandRow& command) {
  std::vector<std::string> names;
  for (const FlagRow& flag : command.flags) {
    if (flag.group.empty()) continue;  // not shown
    for (const std::string& name : flag.names) {
      if (name.starts_with("-")) names.push_back(name);
    }
  }
  return names;
}

/// The words of a shell's completion for each kind of value.
struct ShellWords {
  std::string none;
  std::string choice;
  std::string file;
  std::string folder;
  std::string key;
  std::string other;
};

std::string words_for(const FlagRow& flag, const ShellWords& words) {
  switch (kind_of(flag)) {
    case ValueKind::kNone:
      return words.none;
    case ValueKind::kChoice:
      return words.choice;
    case ValueKind::kFile:
      return words.file;
    case ValueKind::kFolder:
      return words.folder;
    case ValueKind::kKey:
      return words.key;
    case ValueKind::kOther:
      break;
  }
  return words.other;
}

// --- bash ---

std::string bash_words(const std::vector<std::string>& words) {
  return fmt::format("_dstrain_words {} \"$cur\"",
                     quoted(fmt::format("{}", fmt::join(words, " "))));
}

std::string bash_action(const FlagRow& flag, const ProgramTable& program) {
  if (takes_command(flag)) return bash_words(names_of(program));
  return words_for(flag, {.none = ":",
                          .choice = bash_words(flag.choices),
                          .file = "_dstrain_paths -f \"$cur\"",
                          .folder = "_dstrain_paths -d \"$cur\"",
                          .key = "_dstrain_keys \"$cur\"",
                          .other = ":"});
}

std::string bash_cases(const CommandRow& command, const ProgramTable& program) {
  std::string cases;
  std::string argument = ":";
  for (const FlagRow& flag : command.flags) {
    const std::string action = bash_action(flag, program);
    if (flag.is_argument && argument == ":") argument = action;
    if (flag.value.empty()) continue;
    std::vector<std::string> patterns;
    for (const std::string& name : flag.names) {
      if (name.starts_with("-")) patterns.push_back(command.name + ":" + name);
    }
    if (patterns.empty()) continue;
    cases += fmt::format("    {}) {}; return ;;\n", fmt::join(patterns, " | "), action);
  }
  // This comes after all flags with values, none of which was being completed.
  cases += fmt::format("    {}:*)\n      if [[ $cur == -* ]]; then {}; else {}; fi ;;\n",
                       command.name, bash_words(flag_names(command)), argument);
  return cases;
}

constexpr const char* kBashHead = R"(# bash completion for dstrain, made by: dstrain completion bash
_dstrain_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$2"); }
_dstrain_paths() {
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen "$1" -- "$2")
}
_dstrain_keys() {
  compopt -o nospace 2>/dev/null
  mapfile -t COMPREPLY < <(compgen -S = -W "$_dstrain_config_keys" -- "$1")
}
)";

// bash takes "=" for a word of its own.
constexpr const char* kBashBody = R"(_dstrain() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
  COMPREPLY=()
  if [[ $cur == = ]]; then
    cur=
  elif [[ $prev == = ]]; then
    prev=${COMP_WORDS[COMP_CWORD - 2]}
  fi
)";

// --- zsh ---

/// Escapes text for the inside of '…' and of a specification's brackets.
std::string zsh_text(const std::string& text) {
  std::string escaped = replaced(first_clause(text), "[", "\\[");
  escaped = replaced(escaped, "]", "\\]");
  return replaced(escaped, "'", "'\\''");
}

std::string zsh_action(const FlagRow& flag, const ProgramTable& program) {
  if (takes_command(flag)) return fmt::format("({})", fmt::join(names_of(program), " "));
  return words_for(flag, {.none = " ",
                          .choice = fmt::format("({})", fmt::join(flag.choices, " ")),
                          .file = "_files",
                          .folder = "_files -/",
                          .key = "_dstrain_keys",
                          .other = " "});
}

/// One specification a name: '*--set=[…]:KEY=VALUE:_dstrain_keys'.
std::string zsh_specifications(const CommandRow& command, const ProgramTable& program) {
  std::string text;
  for (const FlagRow& flag : command.flags) {
    if (flag.group.empty()) continue;
    const std::string value =
        flag.value.empty()
            ? ""
            : fmt::format(":{}:{}", replaced(flag.value, ":", "\\:"), zsh_action(flag, program));
    for (const std::string& name : flag.names) {
      if (!name.starts_with("-")) continue;
      const bool is_long = name.starts_with("--");
      text += fmt::format(" \\\n        '*{}{}[{}]{}'", name,
                          value.empty() ? "" : (is_long ? "=" : "+"), zsh_text(flag.text), value);
    }
    if (flag.is_argument) {
      text += fmt::format(" \\\n        '*:{}:{}'", flag.names.front(), zsh_action(flag, program));
    }
  }
  return text;
}

// --- fish ---

std::string fish_quoted(const std::string& text) {
  return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

std::string fish_value(const FlagRow& flag) {
  return words_for(flag, {.none = "",
                          .choice = fmt::format(" -x -a '{}'", fmt::join(flag.choices, " ")),
                          .file = " -r -F",
                          .folder = " -x -a '(__fish_complete_directories)'",
                          .key = " -x -a '(__dstrain_keys)'",
                          .other = " -x"});
}

std::string fish_line(const std::string& command, const FlagRow& flag) {
  std::string names;
  for (const std::string& name : flag.names) {
    if (!name.starts_with("-")) continue;
    names += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  if (names.empty() || flag.group.empty()) return "";
  return fmt::format("complete -c dstrain -n '__fish_seen_subcommand_from {}'{}{} -d {}\n", command,
                     names, fish_value(flag), fish_quoted(first_clause(flag.text)));
}

}  // namespace

std::string bash_completion(const ProgramTable& program, const std::vector<std::string>& keys) {
  std::string text = kBashHead;
  text += fmt::format("_dstrain_config_keys='{}'\n", fmt::join(keys, "\n"));
  text += kBashBody;
  std::vector<std::string> first = names_of(program);
  for (const std::string& name : flag_names(program.program))
    first.push_back(name);
  text += fmt::format("  if ((COMP_CWORD == 1)); then {}; return; fi\n", bash_words(first));
  text += "  case ${COMP_WORDS[1]}:$prev in\n";
  for (const CommandRow* command : shown_commands(program))
    text += bash_cases(*command, program);
  return text + "  esac\n}\ncomplete -F _dstrain dstrain\n";
}

std::string zsh_completion(const ProgramTable& program, const std::vector<std::string>& keys) {
  std::string text = "#compdef dstrain\n# zsh completion, made by: dstrain completion zsh\n";
  text += fmt::format("_dstrain_keys() {{\n  compadd -S = -- \\\n    {}\n}}\n",
                      fmt::join(keys, " \\\n    "));
  text += "_dstrain() {\n  local -a commands=(\n";
  for (const CommandRow* command : shown_commands(program)) {
    text += fmt::format("    {}\n",
                        quoted(command->name + ":" + replaced(command->summary, ":", "\\:")));
  }
  text +=
      "  )\n"
      "  if ((CURRENT == 2)); then _describe command commands; return; fi\n"
      "  local command=$words[2]\n"
      "  shift words\n"
      "  ((CURRENT--))\n"
      "  case $command in\n";
  for (const CommandRow* command : shown_commands(program)) {
    text += fmt::format("    {})\n      _arguments{} ;;\n", command->name,
                        zsh_specifications(*command, program));
  }
  // When sourced, it registers itself; in a folder of $fpath, it is the function itself.
  return text +
         "  esac\n}\nif [[ $zsh_eval_context[-1] == loadautofunc ]]; then\n"
         "  _dstrain \"$@\"\nelse\n  compdef _dstrain dstrain\nfi\n";
}

std::string fish_completion(const ProgramTable& program, const std::vector<std::string>& keys) {
  std::string text = "# fish completion for dstrain, made by: dstrain completion fish\n";
  text += fmt::format("function __dstrain_keys\n  printf '%s=\\n' \\\n    {}\nend\n",
                      fmt::join(keys, " \\\n    "));
  for (const CommandRow* command : shown_commands(program)) {
    text += fmt::format("complete -c dstrain -f -n __fish_use_subcommand -a {} -d {}\n",
                        command->name, fish_quoted(command->summary));
    for (const FlagRow& flag : command->flags) {
      text += fish_line(command->name, flag);
      if (!flag.is_argument || (!takes_command(flag) && flag.choices.empty())) continue;
      text += fmt::format("complete -c dstrain -n '__fish_seen_subcommand_from {}' -f -a '{}'\n",
                          command->name,
                          fmt::join(takes_command(flag) ? names_of(program) : flag.choices, " "));
    }
  }
  return text;
}

}  // namespace dstrain
