// The manual page dstrain(1), in roff, made of the command table.
#pragma once

#include <string>

#include "cmd/help/command_table.h"

namespace dstrain {

std::string man_page(const ProgramTable& program, const std::string& version);

}  // namespace dstrain
