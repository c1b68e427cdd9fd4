// Whole characters of UTF-8, taken from bytes that arrive bit by bit and may be anything: a model
// of bytes promises nothing.
#pragma once

#include <string>

namespace dstrain {

/// This is printed where bytes are no character (U+FFFD).
inline constexpr const char* kReplacement = "\xEF\xBF\xBD";

/// Takes all whole characters off the front of `bytes`, which keeps the beginning of one that may
/// yet be completed: at most 3 bytes. What can be no character becomes a replacement each byte.
std::string take_whole_characters(std::string& bytes);

/// The same for a text that has ended: nothing is held back.
std::string as_utf8(std::string bytes);

}  // namespace dstrain
