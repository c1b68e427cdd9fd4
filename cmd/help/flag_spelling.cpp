#include "cmd/help/flag_spelling.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <optional>
#include <string_view>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/config/config_error.h"
#include "engine/config/did_you_mean.h"

namespace dstrain {
namespace {

bool is_long_flag(const std::string& argument) {
  return argument.size() > 2 && argument.starts_with("--") && argument[2] != '-';
}

const FlagRow* find_flag(const CommandRow& command, const std::string& name) {
  for (const FlagRow& flag : command.flags) {
    for (const std::string& known : flag.names) {
      if (known == name || (is_long_flag(known) && edit_distance(known, name) == 0)) return &flag;
    }
  }
  return nullptr;
}

/// ", did you mean …?", or nothing.
std::string hint(const std::string& name, const std::vector<std::string>& known) {
  std::optional<std::string> nearest = nearest_name(name, known, typing_error_limit(name));
  constexpr std::size_t kShortest = 5;  // "--no" begins too many
  if (!nearest && name.size() >= kShortest) {
    const auto longer = std::find_if(known.begin(), known.end(), [&](const std::string& candidate) {
      return edit_distance(candidate.substr(0, name.size()), name) == 0;
    });
    if (longer != known.end()) nearest = *longer;
  }
  return nearest ? fmt::format("; did you mean \"{}\"?", *nearest) : "";
}

[[noreturn]] void refuse_flag(const CommandRow& command, const std::string& name) {
  std::vector<std::string> known;
  for (const FlagRow& flag : command.flags) {
    std::copy_if(flag.names.begin(), flag.names.end(), std::back_inserter(known), is_long_flag);
  }
  const std::string near = hint(name, known);
  throw ConfigError(
      fmt::format("dstrain {} has no flag \"{}\"{}", command.name, name,
                  near.empty() ? fmt::format("; dstrain help {} lists them", command.name) : near));
}

/// "ssh, openssh or slurm".
std::string one_of(const std::vector<std::string>& words) {
  if (words.size() == 1) return words.front();
  return fmt::format("{} or {}", fmt::join(words.begin(), words.end() - 1, ", "), words.back());
}

struct WholeNumbers {
  long long low = std::numeric_limits<long long>::min();
  long long high = std::numeric_limits<long long>::max();
  std::string words = "a whole number";
};

/// CLI11 writes a range as "INT:INT in [1 - 65535]" or "INT:POSITIVE".
WholeNumbers allowed_numbers(const std::string& type) {
  WholeNumbers allowed;
  const std::size_t open = type.find(" in [");
  const std::size_t dash = type.find(" - ", open);
  if (open != std::string::npos && dash != std::string::npos) {
    allowed.low = std::atoll(type.c_str() + open + 5);
    allowed.high = std::atoll(type.c_str() + dash + 3);
    allowed.words = fmt::format("a whole number from {} to {}", allowed.low, allowed.high);
  } else if (type.find("NONNEGATIVE") != std::string::npos) {
    allowed.low = 0;
    allowed.words = "a whole number, 0 or more";
  } else if (type.find("POSITIVE") != std::string::npos) {
    allowed.low = 1;
    allowed.words = "a whole number above 0";
  }
  return allowed;
}

void check_value(const FlagRow& flag, const std::string& name, const std::string& value) {
  const auto refuse = [&](const std::string& expected, const std::string& near = "") {
    throw ConfigError(fmt::format("{} \"{}\": expected {}{}", name, value, expected, near));
  };
  if (kind_of(flag) == ValueKind::kChoice && !flag.takes_other_values) {
    const bool is_known =
        std::any_of(flag.choices.begin(), flag.choices.end(),
                    [&](const std::string& choice) { return edit_distance(choice, value) == 0; });
    if (!is_known) refuse(one_of(flag.choices), hint(value, flag.choices));
    return;
  }
  const bool is_integer = flag.type.starts_with("INT") || flag.type.starts_with("UINT");
  if (is_integer) {
    long long number = 0;
    const char* const end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, number);
    const WholeNumbers allowed = allowed_numbers(flag.type);
    const bool is_number = error == std::errc() && stop == end;
    if (!is_number || number < allowed.low || number > allowed.high) refuse(allowed.words);
  }
  if (flag.type.starts_with("FLOAT")) {
    char* stop = nullptr;
    static_cast<void>(std::strtod(value.c_str(), &stop));
    if (value.empty() || *stop != '\0') refuse("a number");
  }
}

/// Checks a command's only argument where it is one of a few words.
void check_argument(const CommandRow& command, const std::string& argument) {
  for (const FlagRow& flag : command.flags) {
    if (flag.is_argument) check_value(flag, flag.names.front(), argument);
  }
}

}  // namespace

std::vector<std::string> spell_flags(const CommandRow& command,
                                     const std::vector<std::string>& arguments) {
  std::vector<std::string> spelled;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      spelled.insert(spelled.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i),
                     arguments.end());
      break;
    }
    const std::size_t equals = is_long_flag(argument) ? argument.find('=') : std::string::npos;
    const std::string name = argument.substr(0, equals);
    const FlagRow* const flag = argument.starts_with("-") ? find_flag(command, name) : nullptr;
    if (flag == nullptr) {
      if (is_long_flag(argument)) refuse_flag(command, name);
      if (i > 0) check_argument(command, argument);
      spelled.push_back(argument);
      continue;
    }
    const std::string known =
        *std::find_if(flag->names.begin(), flag->names.end(), [&](const std::string& candidate) {
          return edit_distance(candidate, name) == 0 && candidate.size() == name.size();
        });
    const std::string shown = is_long_flag(name) ? known : name;
    if (equals != std::string::npos) {
      if (flag->value.empty()) {
        throw ConfigError(fmt::format("{} is a switch: it takes no value", shown));
      }
      check_value(*flag, shown, argument.substr(equals + 1));
      spelled.push_back(shown + argument.substr(equals));
      continue;
    }
    spelled.push_back(shown);
    if (flag->value.empty()) continue;
    const bool has_value = i + 1 < arguments.size();
    if (!has_value ||
        (is_long_flag(arguments[i + 1]) &&
         find_flag(command, arguments[i + 1].substr(0, arguments[i + 1].find('='))) != nullptr)) {
      throw ConfigError(
          fmt::format("{} needs a value, {}{}", shown, flag->value,
                      has_value ? fmt::format("; {} follows it", arguments[i + 1]) : ""));
    }
    check_value(*flag, shown, arguments[++i]);
    spelled.push_back(arguments[i]);
  }
  return spelled;
}

const CommandRow& find_command(const ProgramTable& program, const std::string& name) {
  std::vector<std::string> names;
  for (const CommandRow& command : program.commands) {
    if (command.name == name) return command;
    if (!command.is_hidden) names.push_back(command.name);
  }
  const std::string near = hint(name, names);
  throw ConfigError(fmt::format("there is no command \"{}\"{}", name,
                                near.empty() ? "; dstrain --help lists them" : near));
}

std::string sentence_of(const CLI::ParseError& error, const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  if (chosen.empty()) return "expected a command; dstrain --help lists them";
  const std::string& command = chosen.front()->get_name();
  const std::vector<std::string> extras = app.remaining(/*recurse=*/true);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !extras.empty()) {
    return fmt::format("dstrain {} does not expect \"{}\"; dstrain help {} says what it takes",
                       command, extras.front(), command);
  }
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    std::vector<std::string> missing;
    for (const CLI::Option* option : chosen.front()->get_options()) {
      if (!option->get_required() || option->count() > 0) continue;
      missing.push_back(option->get_positional() ? option->get_name(/*positional=*/true)
                                                 : option->get_name());
    }
    return fmt::format("dstrain {} needs {}; dstrain help {} says what it takes", command,
                       fmt::join(missing, ", "), command);
  }
  return fmt::format("dstrain {}: {}", command, error.what());
}

}  // namespace dstrain
