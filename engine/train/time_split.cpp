#include "engine/train/time_split.h"

#include <algorithm>
#include <numeric>

namespace dstrain {
namespace {

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void find_slowest(const Mesh& mesh, const std::vector<RankTime>& ranks, TimeSplit& split) {
  const auto slowest = std::max_element(
      ranks.begin(), ranks.end(),
      [](const RankTime& a, const RankTime& b) { return a.computing() < b.computing(); });
  split.slowest_rank = static_cast<int>(slowest - ranks.begin());
  const int stage = mesh.index(Axis::kPipeline, split.slowest_rank);
  std::vector<double> alike;
  std::vector<double> others;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    if (rank == split.slowest_rank) continue;
    const double computing = ranks[static_cast<std::size_t>(rank)].computing();
    others.push_back(computing);
    if (mesh.index(Axis::kPipeline, rank) == stage) alike.push_back(computing);
  }
  if (others.empty()) return;
  const double median = median_of(alike.empty() ? others : alike);
  if (median > 0.0) split.slower_by = slowest->computing() / median - 1.0;
}

}  // namespace

std::string_view name_of(WaitFor whom) {
  switch (whom) {
    case WaitFor::kData:
      return "data";
    case WaitFor::kContext:
      return "context";
    case WaitFor::kTensor:
      return "tensor";
    case WaitFor::kExperts:
      return "experts";
    case WaitFor::kPipeline:
      return "pipeline";
    case WaitFor::kAll:
      break;
  }
  return "all";
}

AxisSet axes_of(WaitFor whom) {
  switch (whom) {
    case WaitFor::kData:
      return kGradientAxes;
    case WaitFor::kContext:
      return kContextAxes;
    case WaitFor::kTensor:
      return Axis::kTensor;
    case WaitFor::kExperts:
      return Axis::kExpert;
    case WaitFor::kPipeline:
      return Axis::kPipeline;
    case WaitFor::kAll:
      break;
  }
  return kAllAxes;
}

WaitFor waits_for(GroupId group) {
  switch (group) {
    case GroupId::kData:
    case GroupId::kDataInside:
    case GroupId::kDataAcross:
    case GroupId::kExpertData:
      return WaitFor::kData;
    case GroupId::kContextRing:
    case GroupId::kContextHeads:
      return WaitFor::kContext;
    case GroupId::kTensor:
    case GroupId::kSharedHeads:
      return WaitFor::kTensor;
    case GroupId::kPipeline:
    case GroupId::kTied:
      return WaitFor::kPipeline;
    case GroupId::kExperts:
      return WaitFor::kExperts;
    case GroupId::kWorld:
    case GroupId::kStates:
    case GroupId::kModel:
    case GroupId::kExpertModel:
    case GroupId::kCheckpoint:
      break;
  }
  return WaitFor::kAll;
}

double RankTime::computing() const {
  return std::max(0.0, total - data - std::accumulate(waits.begin(), waits.end(), 0.0));
}

TimeSplit split_time(const Mesh& mesh, const std::vector<RankTime>& ranks, double step_seconds) {
  TimeSplit split;
  const double share = 1.0 / static_cast<double>(ranks.size());
  double last = 0.0;  // to have done the step
  for (const RankTime& rank : ranks) {
    last = std::max(last, rank.total);
  }
  for (const RankTime& rank : ranks) {
    split.compute += share * rank.computing();
    split.data += share * rank.data;
    split.pipeline += share * rank.waits[static_cast<std::size_t>(WaitFor::kPipeline)];
    split.straggler += share * (last - rank.total);
  }
  std::vector<double> least(ranks.size());  // of a group, at its first member
  for (std::size_t at = 0; at < kWaitsFor; ++at) {
    const auto whom = static_cast<WaitFor>(at);
    if (whom == WaitFor::kPipeline) continue;
    const auto group_of = [&](std::size_t rank) {
      return static_cast<std::size_t>(mesh.first(axes_of(whom), static_cast<int>(rank)));
    };
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const std::size_t group = group_of(rank);  // its first member comes before the others
      const double wait = ranks[rank].waits[at];
      least[group] = group == rank ? wait : std::min(least[group], wait);
    }
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const double travelling = least[group_of(rank)];
      split.communication[at] += share * travelling;
      split.straggler += share * (ranks[rank].waits[at] - travelling);
    }
  }
  split.rest = std::max(0.0, step_seconds - last);
  find_slowest(mesh, ranks, split);
  return split;
}

}  // namespace dstrain
