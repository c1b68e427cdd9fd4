// Every report has the same style sheet, for light and dark screens, phones and paper, and the same
// script, which shows values under the pointer and hides runs.
#pragma once

#include <string_view>

namespace dstrain {

/// Colours of runs repeat after this many.
inline constexpr int kRunColours = 8;

std::string_view report_style();
std::string_view report_script();

}  // namespace dstrain
