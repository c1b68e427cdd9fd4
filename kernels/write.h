// Whether an output is overwritten or added to.
#pragma once

#include <cstdint>

namespace dstrain {

enum class Write : std::uint8_t { kOverwrite, kAdd };

}  // namespace dstrain
