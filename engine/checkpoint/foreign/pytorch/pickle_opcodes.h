// The names of pickle's opcodes, for sentences about those that are not read.
#pragma once

#include <cstdint>
#include <string_view>

namespace dstrain {

/// As Python's pickletools calls it; "" if no protocol has such an opcode.
std::string_view pickle_opcode_name(std::uint8_t opcode);

}  // namespace dstrain
