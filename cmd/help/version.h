// The text that `dstrain --version` prints.
#pragma once

#include <string>

namespace dstrain {

/// The version, what the program was built with, and the devices that it sees on this machine.
std::string version_text();

}  // namespace dstrain
