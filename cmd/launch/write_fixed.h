// `dstrain launch CONFIG --write-fixed FILE` writes a copy of the config that is accepted, with a
// comment beside each change.
#pragma once

#include <string>

#include "cmd/run_flags.h"

namespace dstrain {

/// Writes `file`, which must not exist yet, for runs of `world_size` ranks. Throws ConfigError that
/// lists what cannot be mended; then nothing is written. Returns the exit code.
int write_fixed(const RunFlags& flags, int world_size, const std::string& file);

}  // namespace dstrain
