// The form of spdlog's lines: time, "warning: " or "error: " where it is one, and the message, on
// stderr. The launcher puts the rank in front; without it a rank does so itself. On a terminal
// warnings are yellow and errors red, unless NO_COLOR is set.
#pragma once

#include <string>

namespace dstrain {

/// `tag` goes before the time: "[3] ". Empty: none.
void set_up_logging(const std::string& tag = {});

/// The last line of a command that fails begins with it.
constexpr const char* kErrorPrefix = "dstrain: error: ";
/// Prints that line.
void print_error(const std::string& message);

}  // namespace dstrain
