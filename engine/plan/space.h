// Space: the memory that something lies in.
#pragma once

#include <cstdint>

namespace dstrain {

enum class Space : std::uint8_t {
  kDevice,  ///< where the rank computes: a GPU's memory, or the host's where that is the device
  kHost,    ///< the host's, whatever the rank computes on
};

}  // namespace dstrain
