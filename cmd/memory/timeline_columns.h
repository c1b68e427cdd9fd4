// Reduces a step's time line, which may have a hundred thousand moments, to what a picture has room
// for: columns of equal width, each as high as the highest moment in it, so that no peak is lost,
// and bands that say where the step is, which are joined where they would be too narrow to see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/train/memory_timeline.h"

namespace dstrain {

/// The begin and end of a moment in the step's work on its rank, from 0 to 1. A moment without any
/// work of its own ends where it begins.
struct WorkSpan {
  double begin = 0.0;
  double end = 0.0;
};
WorkSpan span_of(const MemoryTimeline& timeline, std::size_t moment);

/// Returns for each of `num_columns` equal parts of the step the moment that is highest in it, the
/// first of equals. A moment without any work is in the column that it begins in.
std::vector<std::size_t> highest_of_columns(const MemoryTimeline& timeline, int num_columns);

struct PhaseBand {
  enum class Kind : std::uint8_t { kForward, kBackward, kBoth, kUpdate };
  Kind kind = Kind::kForward;
  int first_micro_batch = 0;  ///< lowest and highest number; not of kUpdate
  int last_micro_batch = 0;
  double begin = 0.0;  ///< in the step's work, from 0 to 1
  double end = 0.0;
};

/// The bands cover 0 to 1 without a gap. Neighbours narrower than `narrowest` are joined: first
/// those of one kind (a pipeline's first forwards), then whatever is still too narrow. The update
/// stays alone.
std::vector<PhaseBand> phase_bands(const MemoryTimeline& timeline, double narrowest);

/// "forward", "forward and backward in turn".
std::string_view name_of(PhaseBand::Kind kind);
/// "backward of micro-batch 3", "forward and backward in turn, micro-batches 0 to 448".
std::string describe(const PhaseBand& band);

}  // namespace dstrain
