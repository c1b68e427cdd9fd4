// Removes from a JSON text the liberties that DeepSpeed's configs take and a strict parser refuses:
// comments, trailing commas and Python's names for numbers that JSON does not have. Every other
// character keeps its place.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace dstrain {

struct CleanJson {
  std::string text;                               ///< as long as the input
  std::optional<std::size_t> unclosed_comment{};  ///< offset of a /* without */
  std::map<std::size_t, double> named_numbers{};  ///< by offset; a 0 stands there
};

/// Blanks //…, #…, /*…*/, a UTF-8 byte order mark, and a comma before ] or }; puts 0 for Infinity,
/// -Infinity and NaN. Strings are left alone; newlines stay.
CleanJson clean_json(std::string_view text);

}  // namespace dstrain
