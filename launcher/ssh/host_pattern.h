// Patterns for host names as OpenSSH's files have them: "*" and "?" as in a shell, "!" in front
// takes back. Letters match in either case.
#pragma once

#include <string_view>
#include <vector>

namespace dstrain::launcher {

bool matches_pattern(std::string_view text, std::string_view pattern);

/// Whether at least one of the patterns matches and none of those with "!" does.
bool matches_pattern_list(std::string_view text, const std::vector<std::string_view>& patterns);

/// The same for "a,b,!c".
bool matches_comma_list(std::string_view text, std::string_view list);

}  // namespace dstrain::launcher
