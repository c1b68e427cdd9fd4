// How the launcher opens what it reads: regular files alone, as the trainer does
// (kernels/core/regular_file.h; these two towers share no code). A pipe is waited for only where
// the user's own shell has made it, for a file that is named on the command line.
#pragma once

#include <cstddef>
#include <string>

namespace dstrain::launcher {

struct PlainText {
  std::string text{};
  std::string why{};  ///< a clause, where it could not be read: "is a pipe, not a file"
};

/// What a user may name on the command line: also a pipe that this process was given, `<(…)` or
/// /dev/stdin.
enum class MayBePipe : bool { kNo, kYes };

/// All of it, up to `most_bytes`; more are an error.
PlainText read_plain_file(const std::string& path,
                          MayBePipe may_be_pipe = MayBePipe::kNo,
                          std::size_t most_bytes = std::size_t{64} << 20);

}  // namespace dstrain::launcher
