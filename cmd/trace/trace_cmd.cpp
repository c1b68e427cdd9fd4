// dstrain trace: a timeline of what all ranks do in a few steps: of a run that is going on, which
// is asked for it, or one that the run has written already.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cmd/byte_progress.h"
#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/runs/run_overview.h"
#include "cmd/trace/trace_tables.h"
#include "engine/base/amount_text.h"
#include "engine/base/storage_error.h"
#include "engine/checkpoint/owner/run_owner.h"
#include "engine/config/config_error.h"
#include "engine/train/trace/trace_file.h"
#include "engine/train/trace/trace_request.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

struct TraceFlags {
  std::string folder;
  std::int64_t steps = 5;
  std::string ranks = "all";
  std::string of;  ///< steps of a trace that is there; empty: not asked for
  std::string output;
  bool tables = false;
  bool json = false;
};

/// Traces that a run has written, the oldest first.
std::vector<fs::path> written_traces(const fs::path& run) {
  std::vector<std::pair<fs::file_time_type, fs::path>> found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run / "traces", none)) {
    const auto time = fs::last_write_time(entry.path() / kTraceIndex, none);
    if (!none) found.emplace_back(time, entry.path());
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> folders;
  for (auto& [time, path] : found) {
    folders.push_back(std::move(path));
  }
  return folders;
}

std::string list_of(const std::vector<fs::path>& traces) {
  std::string list;
  for (const fs::path& trace : traces) {
    list += (list.empty() ? "" : ", ") + trace.filename().string();
  }
  return list;
}

/// The trace of `spans`, or the newest.
fs::path find_trace(const fs::path& run, const std::string& steps) {
  const std::vector<fs::path> traces = written_traces(run);
  if (traces.empty()) {
    throw ConfigError(fmt::format(
        "{} has no traces: nothing runs there that could be asked for one; start it with "
        "--set training.trace.steps=20-24, or ask while it runs",
        run.string()));
  }
  if (steps.empty()) return traces.back();
  for (const fs::path& trace : traces) {
    if (trace.filename() == "steps-" + steps) return trace;
  }
  throw ConfigError(
      fmt::format("{} has no trace of steps {}; it has {}", run.string(), steps, list_of(traces)));
}

/// Waits for what the run writes, and sees whether it still can.
class Wait {
 public:
  explicit Wait(const fs::path& run) : run_(run) {}

  /// One look later; throws where the run has ended meanwhile. `what` is being waited for.
  void pause(const std::string& what) {
    constexpr std::chrono::milliseconds kBetweenLooks{50};
    constexpr int kLooksBetweenChecks = 40;
    progress_.show_phase(what);
    std::this_thread::sleep_for(kBetweenLooks);
    if (++looks_ % kLooksBetweenChecks != 0) return;
    if (has_ended_) {
      progress_.clear();
      throw StorageError(
          fmt::format("{}: the run has ended, and did not write {}", run_.string(), what));
    }
    // A run may write a trace as it ends, so the files are looked for once more.
    has_ended_ = state_word(look_at_run(run_, std::chrono::milliseconds(0))) == "not running";
  }
  void done() { progress_.clear(); }

 private:
  fs::path run_;
  ByteProgress progress_;
  int looks_ = 0;
  bool has_ended_ = false;
};

/// Asks for a trace and waits until the run has begun to write it.
fs::path traced_now(const TraceFlags& flags, const std::vector<NumberSpan>& ranks, Wait& wait) {
  const fs::path run = flags.folder;
  const std::vector<fs::path> before = written_traces(run);
  const auto time_of = [](const fs::path& trace) {
    std::error_code none;
    return fs::last_write_time(trace / kTraceIndex, none);
  };
  const auto newest = before.empty() ? fs::file_time_type::min() : time_of(before.back());
  ask_for_trace(run, {.steps = flags.steps, .ranks = ranks});
  while (true) {
    const std::vector<fs::path> now = written_traces(run);
    const bool was_taken = !fs::exists(run / TraceRequest::kFile);
    if (was_taken && !now.empty() && time_of(now.back()) > newest) return now.back();
    wait.pause(was_taken ? fmt::format("a trace of {}", counted(flags.steps, "step"))
                         : "an answer at the end of a step");
  }
}

int trace(const TraceFlags& flags) {
  const fs::path run = flags.folder;
  const auto ranks = flags.ranks == "all" ? std::vector<NumberSpan>() : parse_spans(flags.ranks);
  if (!ranks) {
    throw ConfigError(fmt::format(
        "--ranks must be \"all\", or numbers of ranks such as 0,8-15, ascending; found \"{}\"",
        flags.ranks));
  }
  const RunStatus status = look_at_run(run, OwnerTiming{}.beat * 3 / 2);
  const bool asks = flags.of.empty() && state_word(status) != "not running";
  Wait wait(run);
  const fs::path folder = asks ? traced_now(flags, *ranks, wait) : find_trace(run, flags.of);
  const TraceIndex index = read_trace_index(folder);
  for (const int rank : index.ranks) {
    while (asks && !fs::exists(folder / rank_file_name(rank))) {
      wait.pause(fmt::format("the trace of rank {}", rank));
    }
  }
  wait.done();
  TraceIndex joined = index;
  if (!asks && !ranks->empty()) {
    std::erase_if(joined.ranks, [&](int rank) { return !has_number(*ranks, rank); });
    if (joined.ranks.empty()) {
      throw ConfigError(fmt::format("{} has no rank of {}", folder.string(), flags.ranks));
    }
  }
  if (flags.tables || flags.json) {
    TraceTables tables = tables_of(folder, joined.ranks.front());
    add_flops(overview_of(run, std::chrono::milliseconds(0)), tables);
    fmt::print("{}", flags.json ? to_json_text(tables) : to_text(tables));
    return kExitSuccess;
  }
  const fs::path output =
      flags.output.empty() ? fs::path(folder.string() + ".json.gz") : fs::path(flags.output);
  join_rank_traces(folder, joined, output);
  fmt::print("{}: steps {} of {}, {}; open it at https://ui.perfetto.dev\n", output.string(),
             to_text({index.steps}), counted(std::ssize(joined.ranks), "rank"),
             as_size(static_cast<std::int64_t>(fs::file_size(output))));
  return kExitSuccess;
}

}  // namespace

void add_trace_command(CLI::App& app, Command& chosen) {
  auto flags = std::make_shared<TraceFlags>();
  CLI::App* const command = app.add_subcommand(
      "trace", "Draw a timeline of what all ranks do in a few steps, for Perfetto");
  command->add_option("RUN", flags->folder, "The run's training.output_dir")
      ->required()
      ->type_name("DIR");
  CLI::Option* const steps =
      command
          ->add_option("--steps", flags->steps,
                       "How many steps of a run that is going on; default: 5")
          ->check(CLI::Range(std::int64_t{1}, TraceConfig::kMostSteps));
  command
      ->add_option("--ranks", flags->ranks,
                   "Which ranks, such as 0,8-15; default: all, of which each writes its own part")
      ->type_name("LIST");
  command
      ->add_option("--of", flags->of,
                   "Take the trace of these steps, such as 20-24, which the run has written "
                   "already; default: the newest, where the run has ended")
      ->type_name("STEPS")
      ->excludes(steps);
  command
      ->add_option("-o,--output", flags->output,
                   "The file to write; default: RUN/traces/steps-A-B.json.gz")
      ->type_name("FILE");
  command->add_flag("--tables", flags->tables,
                    "Print instead what the first of the ranks did: its transfers by kind and "
                    "size, with count, bytes, time and bandwidths; its blocks, with FLOPs; and "
                    "its operations, those that take longest first");
  command->add_flag("--json", flags->json, "Print these tables as one JSON object");
  command->footer(
      "Examples:\n"
      "  dstrain trace runs/quickstart                  # the next five steps\n"
      "  dstrain trace runs/quickstart --tables         # sums instead of a timeline\n"
      "  dstrain trace runs/quickstart --ranks 0-7 --steps 2\n"
      "  dstrain trace runs/quickstart --of 20-24       # of training.trace.steps\n"
      "Each rank is a process of the timeline: its actions, operations, transfers with bytes and\n"
      "rates, and waits; arrows lead from a message's sender to its receiver. The clocks of all\n"
      "hosts are compared before and after. A folder RUN/traces/steps-A-B, which has a file for\n"
      "each rank, is what Holistic Trace Analysis reads.");
  command->callback([flags, &chosen] { chosen = [flags] { return trace(*flags); }; });
}

}  // namespace dstrain
