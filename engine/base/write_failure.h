// The sentence for a write that the system refused: what, where, why, what would help, and where
// space is lacking, how much is needed and how much there is. It gives everything that writes the
// same wording.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dstrain {

/// "cannot write PATH: No space left on device; it needs 12 bytes, 0 bytes are free on its file
/// system". `error` is an errno; `needed_bytes` what the file is to have, where that is known.
std::string describe_write_failure(std::string_view what,
                                   const std::string& path,
                                   int error,
                                   std::optional<std::int64_t> needed_bytes = std::nullopt);

}  // namespace dstrain
