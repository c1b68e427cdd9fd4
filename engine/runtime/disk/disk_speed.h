// How a disk is best asked: the block size and the number of blocks at once with which it reads and
// writes most, by a short measurement at start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "engine/runtime/disk/disk_queue.h"
#include "engine/runtime/disk/scratch_file.h"

namespace dstrain {

/// What the config names, and for the rest what the disk is fastest with; where the file is small,
/// DiskQueueOptions' defaults. Writes `memory`, which must be zeros, to the beginning of the file,
/// on which nothing is yet, and logs the rates.
DiskQueueOptions choose_queue_options(const ScratchFile& file,
                                      std::span<std::byte> memory,
                                      std::optional<std::int64_t> block_bytes,
                                      std::optional<int> depth);

}  // namespace dstrain
