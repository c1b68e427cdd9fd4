#include "cmd/help/help_text.h"

#include <sstream>

#include <fmt/format.h>

namespace dstrain {
namespace {

constexpr std::size_t kColumns = 80;
constexpr std::size_t kTextColumn = 26;  // explanations begin in this column

/// Wraps `text` into lines of at most kColumns, each indented by `indent` spaces but the first,
/// which continues at `column`.
std::string wrap(const std::string& text, std::size_t column, std::size_t indent) {
  std::string wrapped;
  std::istringstream words(text);
  bool is_first_of_line = true;
  for (std::string word; words >> word;) {
    const std::size_t needed = (is_first_of_line ? 0 : 1) + columns_of(word);
    if (!is_first_of_line && column + needed > kColumns) {
      wrapped += "\n" + std::string(indent, ' ');
      column = indent;
      is_first_of_line = true;
    }
    wrapped += (is_first_of_line ? "" : " ") + word;
    column += (is_first_of_line ? 0 : 1) + columns_of(word);
    is_first_of_line = false;
  }
  return wrapped;
}

/// A name, and its explanation in the second column, on the same line if there is room.
std::string entry(const std::string& name, const std::string& text) {
  std::string line = "  " + wrap(name, 2, 6);
  const std::size_t last = columns_of(line.substr(line.rfind('\n') + 1));
  line += last + 2 <= kTextColumn ? std::string(kTextColumn - last, ' ')
                                  : "\n" + std::string(kTextColumn, ' ');
  return line + wrap(text, kTextColumn, kTextColumn) + "\n";
}

std::string usage(const CommandRow& command) {
  std::string text = "Usage: dstrain " + command.name + " [FLAGS]";
  for (const FlagRow& flag : command.flags) {
    if (!flag.is_argument) continue;
    text += flag.is_required ? " " + flag.names.front() : " [" + flag.names.front() + "]";
  }
  return text + "\n\n" + wrap(command.summary, 0, 0) + ".\n";
}

/// Text is wrapped; an example, which is indented, continues after a backslash.
std::string footer(const std::string& text) {
  std::string result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("  ")) {
      result += wrap(line, 0, 0) + "\n";
      continue;
    }
    while (columns_of(line) > kColumns) {
      const std::size_t cut = line.rfind(' ', kColumns - 2);
      if (cut == std::string::npos || cut < 5) break;  // one long word
      result += line.substr(0, cut) + " \\\n";
      line = "    " + line.substr(cut + 1);
    }
    result += line + "\n";
  }
  return result;
}

}  // namespace

std::size_t columns_of(const std::string& text) {
  std::size_t columns = 0;
  for (const char c : text)
    columns += (static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1 : 0;
  return columns;
}

std::string help_text(const CommandRow& command) {
  std::string text = usage(command);
  bool has_arguments = false;
  for (const FlagRow& flag : command.flags) {
    if (!flag.is_argument) continue;
    text += (has_arguments ? "" : "\n") + entry(signature_of(flag), flag.text);
    has_arguments = true;
  }
  for (const std::string& group : groups_of(command)) {
    text += "\n" + group + "\n";
    for (const FlagRow& flag : command.flags) {
      if (flag.group == group && !flag.is_argument) text += entry(signature_of(flag), flag.text);
    }
  }
  return command.footer.empty() ? text : text + "\n" + footer(command.footer);
}

std::string help_text(const ProgramTable& program) {
  std::string text = "Usage: dstrain COMMAND …\n\n" + program.program.summary + "\n\nCommands\n";
  for (const CommandRow& command : program.commands) {
    if (!command.is_hidden) text += entry(command.name, command.summary);
  }
  text += "\nFlags\n";
  for (const FlagRow& flag : program.program.flags)
    text += entry(signature_of(flag), flag.text);
  return text + "\n" + program.program.footer + "\n";
}

}  // namespace dstrain
