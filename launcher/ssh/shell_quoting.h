// The one place where an argument vector becomes a line for a POSIX shell, because sshd hands a
// command to the user's shell whether one wants it or not.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dstrain::launcher {

/// Text that a shell takes for exactly these words: each in single quotes, in which nothing has a
/// meaning but the quote itself. A word with a null byte cannot exist; throws
/// std::invalid_argument.
std::string shell_quoted(const std::vector<std::string>& argv);
std::string shell_quoted(std::string_view word);

}  // namespace dstrain::launcher
