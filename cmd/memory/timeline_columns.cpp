#include "cmd/memory/timeline_columns.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <fmt/format.h>

#include "kernels/core/check.h"

namespace dstrain {
namespace {

using Kind = PhaseBand::Kind;

Kind kind_of(const MemoryMoment& moment) {
  switch (moment.kind) {
    case MemoryMoment::Kind::kForward:
      return Kind::kForward;
    case MemoryMoment::Kind::kBackward:
      return Kind::kBackward;
    case MemoryMoment::Kind::kUpdate:
      break;
  }
  return Kind::kUpdate;
}

PhaseBand join(const PhaseBand& a, const PhaseBand& b) {
  return {.kind = a.kind == b.kind ? a.kind : Kind::kBoth,
          .first_micro_batch = std::min(a.first_micro_batch, b.first_micro_batch),
          .last_micro_batch = std::max(a.last_micro_batch, b.last_micro_batch),
          .begin = a.begin,
          .end = b.end};
}

/// Joins each run of neighbours, of which every two that touch are `alike`.
std::vector<PhaseBand> join_runs(
    const std::vector<PhaseBand>& bands,
    const std::function<bool(const PhaseBand&, const PhaseBand&)>& alike) {
  std::vector<PhaseBand> joined;
  for (std::size_t i = 0; i < bands.size(); ++i) {
    if (i > 0 && alike(bands[i - 1], bands[i])) {
      joined.back() = join(joined.back(), bands[i]);
    } else {
      joined.push_back(bands[i]);
    }
  }
  return joined;
}

}  // namespace

WorkSpan span_of(const MemoryTimeline& timeline, std::size_t moment) {
  const std::vector<MemoryMoment>& moments = timeline.moments;
  const bool last = moment + 1 == moments.size();
  return {.begin = moments[moment].begin, .end = last ? 1.0 : moments[moment + 1].begin};
}

std::vector<std::size_t> highest_of_columns(const MemoryTimeline& timeline, int num_columns) {
  check(!timeline.moments.empty() && num_columns > 0, "{} moments for {} columns",
        timeline.moments.size(), num_columns);
  constexpr auto kNone = static_cast<std::size_t>(-1);
  const auto count = static_cast<std::size_t>(num_columns);
  std::vector<std::size_t> highest(count, kNone);
  std::vector<std::int64_t> bytes(count, 0);
  for (std::size_t i = 0; i < timeline.moments.size(); ++i) {
    const std::int64_t total = timeline.moments[i].in_use.total();
    const WorkSpan span = span_of(timeline, i);
    const auto first = std::min(
        static_cast<std::size_t>(span.begin * static_cast<double>(num_columns)), count - 1);
    const auto end =
        std::clamp(static_cast<std::size_t>(std::ceil(span.end * static_cast<double>(num_columns))),
                   first + 1, count);
    for (std::size_t column = first; column < end; ++column) {
      if (highest[column] == kNone || total > bytes[column]) {
        highest[column] = i;
        bytes[column] = total;
      }
    }
  }
  check(std::find(highest.begin(), highest.end(), kNone) == highest.end(),
        "moments leave a part of the step out");
  return highest;
}

std::vector<PhaseBand> phase_bands(const MemoryTimeline& timeline, double narrowest) {
  std::vector<PhaseBand> bands;
  for (std::size_t i = 0; i < timeline.moments.size(); ++i) {
    const MemoryMoment& moment = timeline.moments[i];
    const WorkSpan span = span_of(timeline, i);
    bands.push_back({.kind = kind_of(moment),
                     .first_micro_batch = moment.micro_batch,
                     .last_micro_batch = moment.micro_batch,
                     .begin = span.begin,
                     .end = span.end});
  }
  bands = join_runs(bands, [](const PhaseBand& a, const PhaseBand& b) {
    return a.kind == b.kind && a.first_micro_batch == b.first_micro_batch;
  });
  const auto both_narrow = [narrowest](const PhaseBand& a, const PhaseBand& b) {
    return a.end - a.begin < narrowest && b.end - b.begin < narrowest;
  };
  bands = join_runs(bands, [&](const PhaseBand& a, const PhaseBand& b) {
    return a.kind == b.kind && both_narrow(a, b);
  });
  return join_runs(bands, [&](const PhaseBand& a, const PhaseBand& b) {
    return b.kind != Kind::kUpdate && both_narrow(a, b);
  });
}

std::string_view name_of(PhaseBand::Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return "forward";
    case Kind::kBackward:
      return "backward";
    case Kind::kBoth:
      return "forward and backward in turn";
    case Kind::kUpdate:
      break;
  }
  return "optimizer step";
}

std::string describe(const PhaseBand& band) {
  const bool one = band.first_micro_batch == band.last_micro_batch;
  const std::string which =
      one ? fmt::format("micro-batch {}", band.first_micro_batch)
          : fmt::format("micro-batches {} to {}", band.first_micro_batch, band.last_micro_batch);
  switch (band.kind) {
    case Kind::kForward:
    case Kind::kBackward:
      return fmt::format("{} of {}", name_of(band.kind), which);
    case Kind::kBoth:
      return fmt::format("{}, {}", name_of(band.kind), which);
    case Kind::kUpdate:
      break;
  }
  return std::string(name_of(band.kind));
}

}  // namespace dstrain
