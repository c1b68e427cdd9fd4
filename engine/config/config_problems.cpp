#include "engine/config/config_problems.h"

#include <algorithm>
#include <charconv>
#include <tuple>

#include <fmt/format.h>

#include "engine/config/config_keys.h"
#include "engine/config/json_text.h"

namespace dstrain {
namespace {

/// Quotes a text as one word of a shell command.
std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string word = "'";
  for (const char c : text) {
    if (c == '\'') {
      word += "'\\''";
    } else {
      word += c;
    }
  }
  return word + "'";
}

/// Leaves a string unquoted where --set could not take it for other JSON.
std::string bare_if_possible(const std::string& json) {
  const auto node = parse_json_value(json, "");
  if (!node || !node->is(JsonNode::Kind::kString)) return json;
  const std::string& text = node->text;
  const bool like_json =
      !text.empty() && std::string_view("{[\"").find(text[0]) != std::string::npos;
  return like_json || parse_json_value(text, "") ? json : text;
}

bool is_from_command_line(const ConfigProblem& problem) {
  return problem.where.starts_with(kOverridePrefix);
}

std::string arguments_of(const ConfigProblem& problem) {
  std::string arguments;
  const auto add = [&](const std::string& path, const std::string& value) {
    arguments += (arguments.empty() ? "--set " : " --set ") + shell_word(path + "=" + value);
  };
  for (const ConfigEdit& edit : problem.mend) {
    if (edit.kind == ConfigEdit::Kind::kSet) add(edit.path, bare_if_possible(edit.value));
    if (edit.kind == ConfigEdit::Kind::kRemove) {
      if (is_from_command_line(problem)) return "leave it out";
      add(edit.path, "null");
    }
  }
  return arguments;
}

struct Position {
  int group = 0;
  std::size_t line = 0;
  std::size_t column = 0;
};

Position position_of(const ConfigProblem& problem, const std::string& file) {
  constexpr int kOtherFile = 1;
  constexpr int kCommandLine = 2;
  constexpr int kNowhere = 3;
  const std::string& where = problem.where;
  if (is_from_command_line(problem)) return {.group = kCommandLine};
  if (where.empty() || where == file) return {.group = kNowhere};
  const std::size_t second = where.rfind(':');
  const std::size_t first =
      second == 0 || second == std::string::npos ? std::string::npos : where.rfind(':', second - 1);
  Position position{.group = kOtherFile};
  if (first == std::string::npos) return position;
  const char* const begin = where.data();
  std::from_chars(begin + first + 1, begin + second, position.line);
  std::from_chars(begin + second + 1, begin + where.size(), position.column);
  if (where.compare(0, first, file) == 0) position.group = 0;
  return position;
}

bool is_inside(std::string_view path, std::string_view block) {
  return path.size() > block.size() && path.starts_with(block) && path[block.size()] == '.';
}

std::string counted(const std::vector<ConfigProblem>& problems, const std::string& file) {
  if (problems.size() == 1) return sentence_with_mend(problems.front());
  std::string text = fmt::format("{}: {} errors", file, problems.size());
  std::size_t mendable = 0;
  for (const ConfigProblem& problem : problems) {
    text += "\n  " + sentence_with_mend(problem);
    if (!problem.mend.empty() && !is_from_command_line(problem)) ++mendable;
  }
  if (mendable > 0) {
    text += fmt::format("\ndstrain launch {} --write-fixed FILE corrects {} of them in a copy",
                        shell_word(file),
                        mendable == problems.size() ? "all" : std::to_string(mendable));
  }
  return text;
}

}  // namespace

std::string sentence_of(const ConfigProblem& problem) {
  std::string sentence;
  for (const std::string& part : {problem.where, problem.path, problem.message}) {
    if (part.empty()) continue;
    if (!sentence.empty()) sentence += ": ";
    sentence += part;
  }
  return sentence;
}

std::string sentence_with_mend(const ConfigProblem& problem) {
  const std::string arguments = arguments_of(problem);
  return sentence_of(problem) + (arguments.empty() ? "" : fmt::format(" ({})", arguments));
}

ConfigError::ConfigError(ConfigProblem problem)
    : std::runtime_error(sentence_with_mend(problem)), problems_{std::move(problem)} {}

ConfigError::ConfigError(std::vector<ConfigProblem> problems, const std::string& file)
    : std::runtime_error(counted(problems, file)), problems_(std::move(problems)) {}

void ConfigProblems::add(ConfigProblem problem) {
  if (!problem.path.empty()) spoilt_.push_back(problem.path);
  problems_.push_back(std::move(problem));
}

void ConfigProblems::add_unknown(ConfigProblem problem, std::string meant) {
  if (!meant.empty()) spoilt_.push_back(std::move(meant));
  problems_.push_back(std::move(problem));
}

bool ConfigProblems::spoil(std::string_view path) const {
  return std::any_of(spoilt_.begin(), spoilt_.end(), [&](const std::string& spoilt) {
    return spoilt == path || is_inside(path, spoilt) || is_inside(spoilt, path);
  });
}

bool ConfigProblems::spoil_any(std::initializer_list<std::string_view> paths) const {
  return std::any_of(paths.begin(), paths.end(),
                     [&](std::string_view path) { return spoil(path); });
}

std::vector<ConfigProblem> ConfigProblems::in_order(const std::string& file) const {
  std::vector<ConfigProblem> ordered = problems_;
  std::stable_sort(ordered.begin(), ordered.end(), [&](const auto& a, const auto& b) {
    const Position left = position_of(a, file);
    const Position right = position_of(b, file);
    return std::tie(left.group, left.line, left.column) <
           std::tie(right.group, right.line, right.column);
  });
  return ordered;
}

void ConfigProblems::throw_if_any(const std::string& file) const {
  if (!problems_.empty()) throw ConfigError(in_order(file), file);
}

}  // namespace dstrain
