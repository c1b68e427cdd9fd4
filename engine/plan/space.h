// Space: the memory that something lies in.
#pragma once

#include <cstdint>

namespace dstrain {

enum class Space : std::uint8_t {
  kDevice,  ///< where the rank computes: a GPU's memory, or the host's where that is the device
  kHost,    ///< the host's, whatever the rank computes on
  kDisk,    ///< a disk of the host's
};

/// Data on a disk begins at a multiple of this, and is read and written in multiples of it.
inline constexpr std::int64_t kDiskBlockBytes = 4096;

}  // namespace dstrain
