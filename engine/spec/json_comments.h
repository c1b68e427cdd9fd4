// Comments and trailing commas of a JSON text, blanked out so that every other character keeps
// its place. DeepSpeed reads Hjson, and configs in the wild use these two of its liberties.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace dstrain {

struct CommentFree {
  std::string text;                             ///< as long as the input
  std::optional<std::size_t> unclosed_comment;  ///< offset of a /* without */
};

/// Blanks //…, #…, /*…*/, a UTF-8 byte order mark, and a comma before ] or }. Strings are left
/// alone; newlines stay.
CommentFree blank_comments(std::string_view text);

}  // namespace dstrain
