// TimeSplit: where the time of a step went, over all ranks. Each rank reports how long it took
// until it had done the step, and how much of that it waited, for whom and for data; the rest it
// computed. In a group, whoever arrives last waits only while bytes travel: so the least wait of
// its members is what the transfer itself cost all of them, and what the others wait beyond that is
// for those who were slower.
//
// The parts add up to the step:
//
//   step = compute + data + Σ communication + pipeline + straggler + rest
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/plan/group_plan.h"
#include "engine/plan/mesh.h"

namespace dstrain {

/// Whom a rank waits for.
enum class WaitFor : std::uint8_t {
  kData,      ///< ranks with other tokens: gradients, and parameters where they are cut
  kContext,   ///< ranks with other tokens of the same samples
  kTensor,    ///< ranks with other parts of the same layers
  kExperts,   ///< ranks with other experts
  kPipeline,  ///< stages with other layers
  kAll        ///< norms, and what all ranks agree on
};
inline constexpr std::size_t kWaitsFor = 6;
/// "data", "context", …: the words of metrics.jsonl, in "time_split".
std::string_view name_of(WaitFor whom);
WaitFor waits_for(GroupId group);
/// The axes along which ranks that wait for each other differ.
AxisSet axes_of(WaitFor whom);

/// A rank's seconds of a step.
struct RankTime {
  double total = 0.0;                     ///< until the rank had done the step, and told so
  double data = 0.0;                      ///< waiting for the next batch
  std::array<double, kWaitsFor> waits{};  ///< for other ranks
  /// The rank whose bytes it waited for longest, beside computation too; -1: none.
  int slow_peer = -1;
  double slow_peer_seconds = 0.0;

  [[nodiscard]] double computing() const;
};

struct TimeSplit {
  double compute = 0.0;  ///< mean of the ranks, as the next
  double data = 0.0;
  /// While bytes travel and nothing else is done. That for stages is 0: `pipeline` has it.
  std::array<double, kWaitsFor> communication{};
  double pipeline = 0.0;   ///< waiting for other stages: the schedule's bubble, and what exceeds it
  double straggler = 0.0;  ///< waiting for ranks that take longer
  double rest = 0.0;       ///< of rank 0, after all have told
  /// The rank that computes longest, and by which share longer than the median of the others: of
  /// its stage, or where it is alone there, of all.
  int slowest_rank = 0;
  double slower_by = 0.0;
};

/// `ranks` are those of the mesh, one at least; `step_seconds` is rank 0's, which has waited for
/// all of them.
TimeSplit split_time(const Mesh& mesh, const std::vector<RankTime>& ranks, double step_seconds);

}  // namespace dstrain
