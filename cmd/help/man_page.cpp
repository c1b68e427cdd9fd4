#include "cmd/help/man_page.h"

#include <sstream>
#include <string_view>

namespace dstrain {
namespace {

/// Escapes text for roff: a hyphen is shown as a minus, a backslash as itself, and a dot or quote
/// at the beginning of a line is not taken for a request.
std::string roff(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else {
      escaped += c;
    }
  }
  if (escaped.starts_with('.') || escaped.starts_with('\'')) escaped.insert(0, "\\&");
  return escaped;
}

/// Ends lines at the ends of sentences, as roff wants it, and makes no line longer than a
/// terminal's.
std::string paragraph(const std::string& text) {
  constexpr std::size_t kLongest = 78;
  std::string lines;
  std::string line;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!line.empty() && roff(line).size() + 1 + roff(word).size() > kLongest) {
      lines += roff(line) + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    if (word.ends_with('.')) {
      lines += roff(line) + "\n";
      line.clear();
    }
  }
  return line.empty() ? lines : lines + roff(line) + "\n";
}

std::string flag_entry(const FlagRow& flag) {
  std::string names;
  for (const std::string& name : flag.names)
    names += (names.empty() ? "\\fB" : ", \\fB") + roff(name) + "\\fR";
  if (!flag.value.empty() && !flag.is_argument) names += " \\fI" + roff(flag.value) + "\\fR";
  return ".TP\n" + names + "\n" + paragraph(flag.text);
}

/// A footer's indented lines are to be typed; the others are text.
std::string footer(const std::string& text) {
  std::string page;
  std::string prose;
  bool is_literal = false;
  const auto end_prose = [&] {
    if (!prose.empty()) page += (page.empty() ? "" : ".PP\n") + paragraph(prose);
    prose.clear();
  };
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const bool is_example = line.starts_with("  ");
    if (is_example) end_prose();
    if (is_example != is_literal) page += is_example ? ".RS\n.nf\n" : ".fi\n.RE\n";
    is_literal = is_example;
    if (is_example) {
      page += roff(line.substr(2)) + "\n";
    } else {
      prose += line + "\n";
    }
  }
  if (is_literal) page += ".fi\n.RE\n";
  end_prose();
  return page;
}

std::string upper(std::string text) {
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return text;
}

std::string command_section(const CommandRow& command) {
  std::string page = ".SH " + roff(upper(command.name)) + "\n.SY \"dstrain " + roff(command.name) +
                     "\"\n[\\fIFLAGS\\fR]\n";
  for (const FlagRow& flag : command.flags) {
    if (!flag.is_argument) continue;
    const std::string name = "\\fI" + roff(flag.names.front()) + "\\fR";
    page += flag.is_required ? name + "\n" : "[" + name + "]\n";
  }
  page += ".YS\n.PP\n" + paragraph(command.summary + ".");
  for (const FlagRow& flag : command.flags) {
    if (flag.is_argument) page += flag_entry(flag);
  }
  for (const std::string& group : groups_of(command)) {
    page += ".SS " + roff(group) + "\n";
    for (const FlagRow& flag : command.flags) {
      if (flag.group == group && !flag.is_argument) page += flag_entry(flag);
    }
  }
  return command.footer.empty() ? page : page + ".SS Notes\n" + footer(command.footer);
}

}  // namespace

std::string man_page(const ProgramTable& program, const std::string& version) {
  std::string page =
      ".\\\" Made by: dstrain man\n.TH DSTRAIN 1 \"\" \"dstrain " + roff(version) +
      "\" \"User Commands\"\n.SH NAME\ndstrain \\- distributed training of transformer language "
      "models\n.SH SYNOPSIS\n.SY dstrain\n\\fICOMMAND\\fR\n[\\fIFLAGS\\fR]\n.YS\n"
      ".SH DESCRIPTION\n";
  page += paragraph(program.program.summary);
  for (const CommandRow& command : program.commands) {
    if (!command.is_hidden)
      page += ".TP\n\\fB" + roff(command.name) + "\\fR\n" + paragraph(command.summary + ".");
  }
  for (const CommandRow& command : program.commands) {
    if (!command.is_hidden) page += command_section(command);
  }
  return page;
}

}  // namespace dstrain
