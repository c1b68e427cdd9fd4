// Colours of the picture of a step's memory: a fixed one for each component, the same on light and
// dark pages, and a style sheet for everything around them, which follows the reader's choice.
#pragma once

#include <string_view>

#include "cmd/memory/timeline_columns.h"
#include "engine/plan/memory_components.h"

namespace dstrain {

std::string_view memory_style_sheet();

/// A family of hues for what stands, what is kept for backward, and what comes and goes; light and
/// dark in turn. With normal and with no red, green or blue cones, neighbours in the stack differ
/// by 0.17 in OKLab at least and no two by less than 0.067.
std::string_view colour_of(MemoryComponent component);

/// A class of the style sheet.
std::string_view look_of(PhaseBand::Kind kind);

}  // namespace dstrain
