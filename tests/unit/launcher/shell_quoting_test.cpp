// What a real shell makes of quoted words.
#include "launcher/ssh/shell_quoting.h"

#include <stdexcept>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/harness/program.h"

namespace dstrain::launcher {
namespace {

/// The words that a POSIX shell sees in the line.
std::vector<std::string> words_in(const std::string& line) {
  testing::Program shell({"/bin/sh", "-c", "set -- " + line + "; printf '%s\\0' \"$@\""});
  CHECK(shell.wait(std::chrono::seconds{20}) == 0);
  CHECK(shell.err().empty());
  std::vector<std::string> words;
  const std::string out = shell.out();
  for (size_t begin = 0; begin < out.size();) {
    const size_t end = out.find('\0', begin);
    words.push_back(out.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

TEST_CASE("a shell sees quoted words as they were", "[launcher][ssh]") {
  // Every byte alone, every byte between letters, and every pair of those that mean something.
  std::vector<std::string> words = {"", "a b", "-n", "--", "$(exit 1)", "${HOME}", "~root"};
  for (int byte = 1; byte < 256; ++byte) {
    words.emplace_back(1, static_cast<char>(byte));
    words.push_back(std::string("a") + static_cast<char>(byte) + "b");
  }
  const std::string special = "'\"\\$`!*?[]{}()<>|&;#~=%^ \t\n\r";
  for (const char first : special) {
    for (const char second : special)
      words.push_back({first, second});
  }
  CHECK(words_in(shell_quoted(words)) == words);
}

TEST_CASE("a null byte cannot be quoted", "[launcher][ssh]") {
  CHECK_THROWS_AS(shell_quoted(std::string("a\0b", 3)), std::invalid_argument);
}

}  // namespace
}  // namespace dstrain::launcher
