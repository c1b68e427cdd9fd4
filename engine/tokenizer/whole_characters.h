// Takes whole characters of UTF-8 from bytes that arrive bit by bit and may be anything, as a model
// of bytes promises nothing. Where bytes are not a character, each sequence that begins one and
// breaks off becomes a single U+FFFD, as Unicode recommends (15.0, section 3.9, "maximal subparts")
// and Python and Rust do.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dstrain {

/// This is printed where bytes are not a character (U+FFFD).
inline constexpr const char* kReplacement = "\xEF\xBF\xBD";

/// Takes all whole characters off the front of `bytes`, which keeps the beginning of one that may
/// yet be completed: at most 3 bytes. Bytes that cannot become a character are replaced.
std::string take_whole_characters(std::string& bytes);

/// The same for a text that has ended: nothing is held back.
std::string as_utf8(std::string bytes);

/// Whether as_utf8 would change nothing.
bool is_utf8(std::string_view bytes);

/// The length of a text that continues which can be taken without cutting a character that its last
/// bytes may begin: all but its last character. All of it where that would be nothing, or where the
/// end is not UTF-8 anyway.
std::size_t length_of_whole_characters(std::string_view text);

}  // namespace dstrain
