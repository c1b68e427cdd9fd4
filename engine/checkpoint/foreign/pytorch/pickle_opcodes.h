// The names of pickle's opcodes, for sentences about those that are not read.
#pragma once

#include <cstdint>
#include <string_view>

namespace dstrain {

/// The opcode's name in Python's pickletools; "" if no protocol has it.
std::string_view pickle_opcode_name(std::uint8_t opcode);

}  // namespace dstrain
