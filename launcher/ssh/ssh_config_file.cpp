#include "launcher/ssh/ssh_config_file.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include <fmt/format.h>
#include <glob.h>

#include "engine/base/regular_file.h"

namespace dstrain::launcher {
namespace {

constexpr std::string_view kSpaces = " \t\r\n\f\v";
constexpr int kMaxIncludeDepth = 16;  // OpenSSH's

std::string_view skip_spaces(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kSpaces), text.size()));
}

/// Takes one word off the front of `rest`. Quotes of either kind hold spaces together; a backslash
/// makes a quote or a backslash an ordinary character.
std::string take_word(std::string_view& rest, const std::string& where) {
  std::string word;
  char quote = '\0';
  size_t i = 0;
  for (; i < rest.size(); ++i) {
    const char c = rest[i];
    const char next = i + 1 < rest.size() ? rest[i + 1] : '\0';
    if (c == '\\' && (next == '"' || next == '\'' || next == '\\')) {
      word += next;
      ++i;
    } else if (quote != '\0') {
      if (c == quote) {
        quote = '\0';
      } else {
        word += c;
      }
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (kSpaces.find(c) != std::string_view::npos) {
      break;
    } else {
      word += c;
    }
  }
  if (quote != '\0') throw SshConfigError(fmt::format("{}: a {} is never closed", where, quote));
  rest.remove_prefix(i);
  return word;
}

}  // namespace

SshDirective parse_ssh_config_line(std::string_view line, const std::string& where) {
  SshDirective directive{.where = where};
  std::string_view rest = skip_spaces(line);
  if (rest.empty() || rest.front() == '#') return directive;
  const size_t end = std::min(rest.find_first_of(" \t\r\n\f\v="), rest.size());
  directive.keyword = rest.substr(0, end);
  for (char& c : directive.keyword)
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  rest = skip_spaces(rest.substr(end));
  if (rest.starts_with('=')) rest = skip_spaces(rest.substr(1));
  while (!rest.empty() && rest.front() != '#') {
    directive.arguments.push_back(take_word(rest, where));
    rest = skip_spaces(rest);
  }
  if (directive.keyword.empty() || directive.arguments.empty()) {
    throw SshConfigError(
        fmt::format("{}: \"{}\" has no value", where, skip_spaces(line).substr(0, 80)));
  }
  return directive;
}

namespace {

/// The files that a pattern of Include names, in order.
std::vector<std::string> expand(std::string pattern, const SshConfigPaths& paths) {
  if (pattern.starts_with("~/")) {
    pattern = paths.home + pattern.substr(1);
  } else if (!pattern.starts_with('/')) {
    pattern = paths.include_folder + "/" + pattern;
  }
  std::vector<std::string> files;
  glob_t found{};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  globfree(&found);
  return files;
}

std::vector<SshDirective> read_directives(const std::string& path,
                                          const SshConfigPaths& paths,
                                          int depth) {
  std::vector<SshDirective> directives;
  if (path == "/dev/null") return directives;
  const FileText file = read_regular_file(path, kMostHandWrittenBytes);
  if (file.is_missing) return directives;
  if (!file.why.empty()) throw SshConfigError(fmt::format("{}: {}", path, file.why));
  std::istringstream lines(file.text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    SshDirective directive = parse_ssh_config_line(line, fmt::format("{}:{}", path, number));
    if (directive.keyword.empty()) continue;
    if (directive.keyword == "include") {
      if (depth == kMaxIncludeDepth) {
        throw SshConfigError(
            fmt::format("{}: files include each other more than {} deep; is this one among them?",
                        directive.where, kMaxIncludeDepth));
      }
      for (const std::string& pattern : directive.arguments) {
        for (const std::string& included : expand(pattern, paths))
          directive.included.push_back(read_directives(included, paths, depth + 1));
      }
    }
    directives.push_back(std::move(directive));
  }
  return directives;
}

}  // namespace

std::vector<SshDirective> read_ssh_config_file(const std::string& path,
                                               const SshConfigPaths& paths) {
  return read_directives(path, paths, 0);
}

}  // namespace dstrain::launcher
