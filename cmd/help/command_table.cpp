#include "cmd/help/command_table.h"

#include <algorithm>
#include <cctype>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/config/did_you_mean.h"

namespace dstrain {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// "N" and "FILE" stand for a value; "ssh" stands for itself.
bool is_placeholder(const std::string& word) {
  return std::none_of(word.begin(), word.end(), [](char c) { return c >= 'a' && c <= 'z'; });
}

/// CLI11 describes sets as "{ssh->0,slurm->1}" or "{fp32,bf16}".
std::vector<std::string> words_of_set(const std::string& type) {
  std::vector<std::string> words;
  const std::size_t open = type.find('{');
  if (open == std::string::npos) return words;
  for (std::string word : split(type.substr(open + 1, type.find('}', open) - open - 1), ',')) {
    words.push_back(word.substr(0, word.find("->")));
  }
  return words;
}

/// The option's name for its value, without the checks that CLI11 appends to it.
std::string value_name(const std::string& type) {
  std::size_t end = type.size();
  for (const char* check : {":{", ":value in {", ":INT in [", ":UINT in [", ":FLOAT in [",
                            ":POSITIVE", ":NONNEGATIVE"}) {
    end = std::min(end, type.find(check));
  }
  return type.substr(0, end);
}

void add_name(std::vector<std::string>& names, const std::string& name) {
  const auto same = [&](const std::string& known) { return edit_distance(known, name) == 0; };
  if (name.size() <= 2 || std::none_of(names.begin(), names.end(), same)) names.push_back(name);
}

void describe_value(FlagRow& row, const CLI::Option& option) {
  row.type = option.get_type_name();
  if (option.get_items_expected_max() == 0) return;  // a switch
  const std::string head = value_name(row.type);
  row.choices = words_of_set(row.type);
  if (row.choices.empty() && head.find('|') != std::string::npos) {
    for (const std::string& word : split(head, '|')) {
      if (is_placeholder(word)) {
        row.takes_other_values = true;
      } else {
        row.choices.push_back(word);
      }
    }
    row.value = head;
  } else if (!row.choices.empty()) {
    row.value = fmt::format("{}", fmt::join(row.choices, "|"));
  } else if (head == "INT" || head == "UINT" || head.empty()) {
    row.value = "N";
  } else if (head == "FLOAT") {
    row.value = "X";
  } else {
    row.value = head;
  }
}

FlagRow describe_option(const CLI::Option& option) {
  FlagRow row{.text = option.get_description(),
              .group = option.get_group(),
              .is_required = option.get_required(),
              .is_argument = option.get_positional()};
  if (row.is_argument) row.names.push_back(option.get_name(/*positional=*/true));
  for (const std::string& name : option.get_snames())
    add_name(row.names, "-" + name);
  for (const std::string& name : option.get_lnames())
    add_name(row.names, "--" + name);
  describe_value(row, option);
  const std::string otherwise = option.get_default_str();
  if (!otherwise.empty()) row.text += "; default: " + otherwise;
  return row;
}

}  // namespace

CommandRow describe_command(const CLI::App& command) {
  CommandRow row{.name = command.get_name(),
                 .summary = command.get_description(),
                 .footer = command.get_footer(),
                 .is_hidden = command.get_group().empty()};
  for (const CLI::Option* option : command.get_options())
    row.flags.push_back(describe_option(*option));
  // CLI11 lists --help first; people look for it last.
  const auto is_help = [](const FlagRow& flag) { return flag.names.back() == "--help"; };
  std::stable_partition(row.flags.begin(), row.flags.end(),
                        [&](const FlagRow& flag) { return !is_help(flag); });
  return row;
}

ProgramTable describe_program(const CLI::App& app) {
  ProgramTable table{.program = describe_command(app)};
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    table.commands.push_back(describe_command(*command));
  return table;
}

std::vector<std::string> groups_of(const CommandRow& command) {
  std::vector<std::string> groups;
  for (const FlagRow& flag : command.flags) {
    if (flag.is_argument || flag.group.empty()) continue;
    if (std::find(groups.begin(), groups.end(), flag.group) == groups.end()) {
      groups.push_back(flag.group);
    }
  }
  return groups;
}

std::string signature_of(const FlagRow& flag) {
  const std::string names = fmt::format("{}", fmt::join(flag.names, ", "));
  return flag.value.empty() || flag.is_argument ? names : names + " " + flag.value;
}

ValueKind kind_of(const FlagRow& flag) {
  if (flag.value.empty()) return ValueKind::kNone;
  if (flag.value == "DIR") return ValueKind::kFolder;
  if (flag.value == "KEY=VALUE") return ValueKind::kKey;
  if (!flag.choices.empty() && !flag.takes_other_values) return ValueKind::kChoice;
  for (const char* word : {"FILE", "PATH"}) {
    if (flag.value.find(word) != std::string::npos) return ValueKind::kFile;
  }
  if (flag.is_argument) return ValueKind::kFile;
  return flag.choices.empty() ? ValueKind::kOther : ValueKind::kChoice;
}

std::string first_clause(const std::string& text) {
  constexpr std::size_t kLongest = 72;
  std::string clause = text.substr(0, text.find_first_of(";:\n"));
  if (clause.size() > kLongest) clause = clause.substr(0, clause.rfind(' ', kLongest)) + " …";
  return clause;
}

}  // namespace dstrain
