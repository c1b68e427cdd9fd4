#include "launcher/ssh/shell_quoting.h"

#include <stdexcept>

namespace dstrain::launcher {

std::string shell_quoted(std::string_view word) {
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\0') throw std::invalid_argument("a null byte in an argument of a command");
    if (c == '\'') {
      quoted += "'\\''";  // out of the quotes, one quote, and in again
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string shell_quoted(const std::vector<std::string>& argv) {
  std::string line;
  for (const std::string& word : argv) {
    if (!line.empty()) line += ' ';
    line += shell_quoted(word);
  }
  return line;
}

}  // namespace dstrain::launcher
