// A file of one JSON object a line, each of a step, opened by a run that goes on after a step:
// lines of later steps go, and so does what is no such line (half a line of a crash, zeros of a
// power cut, somebody's edit), of which the log says where it stood. All other lines stay as they
// are.
//
// Whatever its size, the file is read in order once, through a window of a few MiB. The last 64 MiB
// are parsed; of a line before them its beginning, its end and its control characters are looked
// at.
#pragma once

#include <cstdint>
#include <filesystem>

#include "engine/base/file_descriptor.h"

namespace dstrain {

struct StepFile {
  FileDescriptor file;     ///< open for appending
  std::int64_t bytes = 0;  ///< of it, all of them whole lines
};

/// The file as far as `last_step`, created where it is not there; 0: an empty one. It is cut in
/// place and brought to the disk; only where lines in its middle have to go is a new file written,
/// which then takes its name: a crash leaves the old lines or the new ones. Throws StorageError.
StepFile open_step_file(const std::filesystem::path& path, std::int64_t last_step);

}  // namespace dstrain
