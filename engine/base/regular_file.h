// Opens the files that this program reads, which must be regular files. A pipe in the place of a
// file keeps whoever opens it waiting for a writer, and a device may have no end; neither is waited
// for or read, whoever put it there. The one exception is a pipe that the user's own shell has made
// for a file named on the command line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "engine/base/file_descriptor.h"

namespace dstrain {

/// Describes what is not a regular file, as a clause: "is a pipe, not a file".
std::string_view what_it_is(mode_t mode);

struct OpenedFile {
  FileDescriptor file{};    ///< empty: it could not be opened
  std::int64_t bytes = 0;   ///< its size now
  std::string why{};        ///< why it could not, as a clause: "No such file or directory"
  bool is_missing = false;  ///< the reason is that there is no such file
};

/// Whether a pipe that this process was given, `<(…)` or /dev/stdin, may stand for a file.
enum class MayBePipe : bool { kNo, kYes };

/// Opens a file for reading.
OpenedFile open_regular_file(const std::string& path, MayBePipe may_be_pipe = MayBePipe::kNo);

struct FileText {
  std::string text{};
  std::string why{};        ///< why it could not be read, as a clause; the text is empty then
  bool is_missing = false;  ///< there is no such file
};

inline constexpr std::int64_t kMostFileBytes = std::int64_t{1} << 40;
/// The bound for what a user writes by hand.
inline constexpr std::int64_t kMostHandWrittenBytes = std::int64_t{64} << 20;

/// Reads the whole of a file, or nothing of one that has more than `most_bytes`.
FileText read_regular_file(const std::string& path,
                           std::int64_t most_bytes = kMostFileBytes,
                           MayBePipe may_be_pipe = MayBePipe::kNo);

}  // namespace dstrain
