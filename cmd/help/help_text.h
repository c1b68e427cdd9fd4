// The text of --help: 80 columns, flags under headlines.
#pragma once

#include <string>

#include "cmd/help/command_table.h"

namespace dstrain {

/// The columns that a text takes on a terminal that shows UTF-8.
std::size_t columns_of(const std::string& text);

std::string help_text(const CommandRow& command);
/// The help of the program itself: its commands.
std::string help_text(const ProgramTable& program);

}  // namespace dstrain
