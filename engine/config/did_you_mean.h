// The nearest known name to a mistyped one.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

/// The number of insertions, deletions, replacements and swaps of neighbours that turn `a` into
/// `b`; letter case and '-' against '_' cost nothing.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate with the least distance, if that is at most `limit`; the first of equals.
std::optional<std::string> nearest_name(std::string_view name,
                                        const std::vector<std::string>& candidates,
                                        std::size_t limit);

/// The largest distance at which a name of this length still counts as a typing error.
std::size_t typing_error_limit(std::string_view name);
/// Of no limit: the nearest is named however far it is.
inline constexpr std::size_t kAnyDistance = 10'000;

}  // namespace dstrain
