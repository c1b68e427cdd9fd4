// Finds where to cut a text that is too long for one call. Words end where lines do, unless a
// tokenizer has it otherwise, which is checked: a cut is good if the text around it gives the same
// ids whole and in two parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace dstrain {

/// Appends what a text in the middle of a document yields: ids, or the lengths of its pieces.
using EncodeInside = std::function<void(std::string_view text, std::vector<std::int32_t>& out)>;

/// The length of the part of the text that goes first, as Tokenizer::length_to_cut says: up to the
/// last line end that is a good cut, else up to a line end, else whole characters. Between 1 and
/// text.size().
std::size_t length_up_to_line_end(std::string_view text, const EncodeInside& encode);

}  // namespace dstrain
