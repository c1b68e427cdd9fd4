#include "tests/bench/step_budget.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "engine/train/trace/trace_file.h"

namespace dstrain::bench {

std::vector<BudgetRow> step_budget(const std::vector<TraceTrack>& tracks,
                                   std::int64_t steps,
                                   const MachineLimits& machine) {
  std::map<std::pair<std::string, std::string>, BudgetRow> rows;
  for (const TraceTrack& track : tracks) {
    std::vector<TraceEvent> operations;
    for (const TraceEvent& event : track.events) {
      if (event.kind == TraceKind::kOperation) operations.push_back(event);
    }
    std::stable_sort(operations.begin(), operations.end(), [](const auto& a, const auto& b) {
      return std::pair(a.begin_ns, -a.end_ns) < std::pair(b.begin_ns, -b.end_ns);
    });
    std::int64_t end = 0;
    for (const TraceEvent& event : operations) {
      if (event.end_ns <= end) continue;  // a part of the one before
      end = event.end_ns;
      const std::string name(operation_name(event.name));
      const std::string sizes(event.sizes);
      BudgetRow& row = rows[{name, sizes}];
      const auto of_step = [&](std::int64_t total) {
        return static_cast<double>(total) / static_cast<double>(steps);
      };
      row.name = name;
      row.sizes = sizes;
      row.count += of_step(1);
      row.seconds += of_step(event.end_ns - event.begin_ns) * 1e-9;
      row.is_known = event.flops != TraceEvent::kNone;
      if (!row.is_known) continue;
      row.flops += of_step(event.flops);
      row.bytes += of_step(event.bytes);
    }
  }
  std::vector<BudgetRow> sorted;
  for (auto& [key, row] : rows) {
    row.limit =
        row.is_known ? std::max(row.flops / machine.flops, row.bytes / machine.bytes) : row.seconds;
    sorted.push_back(std::move(row));
  }
  std::stable_sort(sorted.begin(), sorted.end(), [](const BudgetRow& a, const BudgetRow& b) {
    return a.seconds - a.limit > b.seconds - b.limit;
  });
  return sorted;
}

std::string budget_text(const std::vector<BudgetRow>& rows, double step_seconds) {
  std::string text =
      fmt::format("{:<32}{:>24}{:>8}{:>10}{:>9}{:>10}{:>9}{:>11}{:>8}\n", "OPERATION", "SIZES",
                  "A STEP", "ms", "SHARE", "GFLOP/s", "GB/s", "LIMIT ms", "OF IT");
  double seconds = 0.0;
  double limit = 0.0;
  const auto line = [&](const BudgetRow& row) {
    const auto rate = [&](double work) {
      return work > 0.0 ? fmt::format("{:.1f}", work * 1e-9 / row.seconds) : "";
    };
    return fmt::format(
        "{:<32}{:>24}{:>8.0f}{:>10.2f}{:>7.1f} %{:>10}{:>9}{:>11}{:>8}\n", row.name, row.sizes,
        row.count, row.seconds * 1e3, 100.0 * row.seconds / step_seconds, rate(row.flops),
        rate(row.bytes), row.is_known ? fmt::format("{:.2f}", row.limit * 1e3) : "",
        row.is_known ? fmt::format("{:.0f} %", 100.0 * row.limit / row.seconds) : "");
  };
  for (const BudgetRow& row : rows) {
    seconds += row.seconds;
    limit += row.limit;
    text += line(row);
  }
  text += line({.name = "all operations", .seconds = seconds, .is_known = true, .limit = limit});
  text += fmt::format("{:<32}{:>24}{:>8}{:>10.2f}\n", "between them", "", "",
                      (step_seconds - seconds) * 1e3);
  return text;
}

}  // namespace dstrain::bench
