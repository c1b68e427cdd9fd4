// OffloadedUpdate: the time and the disk traffic of an update whose masters and moments lie in
// another space than what the model computes with (StreamedUpdate).
#pragma once

#include <cstdint>

namespace dstrain {

struct OffloadedUpdate {
  double seconds = 0.0;  ///< from its beginning to the end of its last window
  std::int64_t disk_bytes_read = 0;
  std::int64_t disk_bytes_written = 0;
};

}  // namespace dstrain
