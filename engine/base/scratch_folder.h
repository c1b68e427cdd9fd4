// Looks at folders that a run is to keep scratch data in.
#pragma once

#include <cstdint>
#include <string>

namespace dstrain {

/// Why a folder of this host cannot hold scratch data on a disk, as a sentence that names it: it is
/// not there, not a folder, cannot be written, or lies in memory (tmpfs). Empty: it can.
std::string objection_to_scratch(const std::string& folder);

/// The bytes that are free for this process on the folder's file system; -1: not known.
std::int64_t free_bytes_in(const std::string& folder);

}  // namespace dstrain
