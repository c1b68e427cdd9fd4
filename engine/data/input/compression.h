// The compressions that input may have, recognised by a file's first bytes.
#pragma once

#include <cstdint>
#include <string_view>

namespace dstrain {

enum class Compression : std::uint8_t { kNone, kGzip, kZstd, kXz };

/// `head` is the first bytes of a file, six or more where it has them.
[[nodiscard]] Compression compression_of(std::string_view head);
/// "gzip"
[[nodiscard]] const char* name_of(Compression compression);
/// The path without the ending that only names a compression: "a.jsonl" of "a.jsonl.gz".
[[nodiscard]] std::string_view name_without_compression(std::string_view path);

}  // namespace dstrain
