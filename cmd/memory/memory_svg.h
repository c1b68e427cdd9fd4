// A picture of what a rank has in use during a step: stacked areas by component over the step's
// work, against what the arena holds all the time and what the device has. One SVG file without
// script or font, for light and dark pages. The parts that stand all the time are at the bottom.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/train/memory_timeline.h"

namespace dstrain {

/// Texts are UTF-8. They shrink to the picture's width; none is cut.
struct MemorySvgText {
  std::string title;
  std::string subtitle;
  std::string peak;                           ///< describe(highest moment, blueprint)
  std::int64_t overhead_bytes = 0;            ///< what the process holds beside the arena
  std::optional<std::int64_t> limit_bytes{};  ///< what the device has
  std::string limit_name = "device memory";   ///< of that, in the legend
};

/// Below 500 KB whatever the number of moments (cmd/memory/timeline_columns.h).
std::string memory_svg(const MemoryTimeline& timeline, const MemorySvgText& text);

}  // namespace dstrain
