// A file of one JSON object a line, each of a step, opened by a run that continues after a step:
// lines of later steps are removed, and so is what is not such a line (half a line from a crash,
// zeros from a power cut, somebody's edit), whose place is logged. All other lines stay as they
// are.
//
// Whatever its size, the file is read in order once, through a window of a few MiB. The last 64 MiB
// are parsed; for lines before them, only the beginning, the end and control characters are
// checked.
#pragma once

#include <cstdint>
#include <filesystem>

#include "engine/base/file_descriptor.h"

namespace dstrain {

struct StepFile {
  FileDescriptor file;     ///< open for appending
  std::int64_t bytes = 0;  ///< of it, all of them whole lines
};

/// Opens the file with its lines up to `last_step`, and creates it where it is missing; 0 gives an
/// empty one. It is cut in place and synced to the disk; only where lines in its middle have to go
/// is a new file written, which then takes its name: a crash leaves the old lines or the new ones.
/// Throws StorageError.
StepFile open_step_file(const std::filesystem::path& path, std::int64_t last_step);

}  // namespace dstrain
