// Fuzz targets of what strangers can send to the ports of a job (fuzz_target.h).
#pragma once

#include "tests/fuzz/fuzz_target.h"

namespace dstrain::fuzz {

/// The accepting end of a handshake, and the dialing one.
void handshake(Bytes bytes);
/// The reader of frames, sealed and not. The first byte decides in what pieces they arrive.
void frames(Bytes bytes);
/// The requests that the store answers.
void store(Bytes bytes);

}  // namespace dstrain::fuzz
