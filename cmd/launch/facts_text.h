// MachineFacts as text: as the launcher hands them to ranks, and ranks to each other.
#pragma once

#include <string>
#include <string_view>

#include "engine/config/machine_facts.h"

namespace dstrain {

/// One line of JSON.
std::string to_text(const MachineFacts& facts);
/// Throws std::invalid_argument, with what was expected.
MachineFacts parse_facts(std::string_view text);

}  // namespace dstrain
