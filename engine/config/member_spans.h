// Finds the bytes of each member of a JSON text, for changes that leave all else as it is, comments
// and order included.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

/// A member of an object, or an element of a list, whose name is its index. Ends are exclusive.
struct MemberSpan {
  std::string path;  ///< dotted; "" is the whole document
  std::size_t key_begin = 0;
  std::size_t key_end = 0;  ///< of an element and of the document: key_begin
  std::size_t value_begin = 0;
  std::size_t value_end = 0;
};

/// In the order in which they begin; the document first. `text` must be one that
/// parse_json_document() accepts.
std::vector<MemberSpan> member_spans(std::string_view text);

/// The next byte from `at` on that is neither blank nor in a comment; the text's size if none is.
std::size_t skip_blanks_and_comments(std::string_view text, std::size_t at);

}  // namespace dstrain
