#include "cmd/runs/run_overview.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "engine/train/records/run_history.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

constexpr int kDepth = 4;  // of folders that are looked into

bool is_run(const fs::path& folder) {
  std::error_code error;
  return std::any_of(kRunFiles.begin(), kRunFiles.end(),
                     [&](const char* name) { return fs::is_regular_file(folder / name, error); });
}

void add_runs(const fs::path& folder, int depth, std::vector<fs::path>& runs) {
  if (is_run(folder)) {
    runs.push_back(folder);
    return;
  }
  if (depth == 0) return;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code unreadable;
    if (entry->is_directory(unreadable) && !entry->is_symlink(unreadable)) {
      add_runs(entry->path(), depth - 1, runs);
    }
  }
}

fs::file_time_type last_change(const fs::path& run) {
  fs::file_time_type last = fs::file_time_type::min();
  for (const char* name : kRunFiles) {
    std::error_code error;
    const auto time = fs::last_write_time(run / name, error);
    if (!error) last = std::max(last, time);
  }
  return last;
}

/// How the last start ended, as far as it said.
std::string end_of_run(const RunOverview& run) {
  const RunStatus& status = run.status;
  if (status.owner && status.owner->end) return status.owner->end->how;
  return run.starts.empty() ? std::string() : run.starts.back().end;
}

}  // namespace

RunOverview overview_of(const fs::path& folder, std::chrono::milliseconds patience) {
  RunOverview run{.status = look_at_run(folder, patience),
                  .config = read_resolved_config(folder),
                  .starts = read_starts(folder),
                  .last_line = last_step_line(folder / "metrics.jsonl"),
                  .total_steps = {},
                  .validation_loss = {}};
  if (const auto total = number_at(run.config, "training.steps")) {
    run.total_steps = static_cast<std::int64_t>(*total);
  }
  run.validation_loss = last_number(folder / "metrics.jsonl", "validation_loss");
  return run;
}

std::string run_word(const RunOverview& run) {
  const std::string state = state_word(run.status);
  if (state != "not running") return state;
  if (run.status.has_owner_file) return "died";
  const std::string end = end_of_run(run);
  for (const char* word : {"finished", "stopped", "failed"}) {
    if (end.starts_with(word)) return word;
  }
  return state;
}

std::string last_word(const RunOverview& run) {
  const std::string word = run_word(run);
  const RunStatus& status = run.status;
  if (word == "died") return "ended without a word: it was killed, or its machine failed";
  if (word == "running" && status.owner) {
    return fmt::format("on {}, pid {}, since {}", status.owner->process.host,
                       status.owner->process.pid, status.owner->since);
  }
  if (word == "unknown") return status.judgement.because;
  return end_of_run(run);
}

std::vector<fs::path> find_runs(const fs::path& folder) {
  std::vector<fs::path> runs;
  add_runs(folder, kDepth, runs);
  std::vector<std::pair<fs::file_time_type, fs::path>> changes;
  for (fs::path& run : runs) {
    const fs::file_time_type change = last_change(run);
    changes.emplace_back(change, std::move(run));
  }
  std::sort(changes.begin(), changes.end(), [](const auto& one, const auto& other) {
    return one.first != other.first ? one.first > other.first : one.second < other.second;
  });
  runs.clear();
  for (auto& [change, run] : changes) {
    runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace dstrain
