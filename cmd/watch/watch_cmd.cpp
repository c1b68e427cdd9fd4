// dstrain watch: follows a run: on a terminal as a page, otherwise as plain lines.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/watch/terminal.h"
#include "cmd/watch/watch_page.h"
#include "cmd/watch/watched_run.h"

namespace dstrain {
namespace {

struct WatchFlags {
  std::string folder;
  double interval = 1.0;
};

bool goes_on(const WatchedRun& run) {
  return state_word(run.overview.status) != "not running";
}

int watch_on_page(RunWatcher& watcher, std::chrono::milliseconds interval) {
  Terminal terminal;
  while (true) {
    const int columns = terminal.columns();
    std::vector<PageLine> page =
        watch_page(watcher.run(), columns, terminal.rows() - 1, terminal.signs());
    page.resize(static_cast<std::size_t>(std::max(1, terminal.rows())) - 1);
    page.push_back({{" q quits; the run goes on", Style::kDim}});
    if (!goes_on(watcher.run())) page.back() = {{" q quits", Style::kDim}};
    terminal.show(page);
    const Terminal::Key key = terminal.wait(interval);
    if (key == Terminal::Key::kQuit) return kExitSuccess;
    if (Terminal::signal() != 0) return kExitSignalBase + Terminal::signal();
    if (key == Terminal::Key::kNone) watcher.look();
  }
}

/// A line for each look that finds new steps; ends with the run.
int watch_in_lines(RunWatcher& watcher, std::chrono::milliseconds interval) {
  for (std::int64_t told = -1;; watcher.look()) {
    const WatchedRun& run = watcher.run();
    if (run.overview.step() != told) {
      fmt::print("{}\n", watch_line(run));
      if (std::fflush(stdout) != 0) return kExitSuccess;  // nobody reads any more
      told = run.overview.step();
    }
    if (!goes_on(run)) {
      fmt::print("{}{}{}\n", run_word(run.overview), last_word(run.overview).empty() ? "" : ": ",
                 last_word(run.overview));
      return kExitSuccess;
    }
    std::this_thread::sleep_for(interval);
  }
}

int watch(const WatchFlags& flags) {
  const auto interval =
      std::chrono::milliseconds(static_cast<std::int64_t>(flags.interval * 1000.0));
  RunWatcher watcher(flags.folder);
  const bool has_screen = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
  return has_screen ? watch_on_page(watcher, interval) : watch_in_lines(watcher, interval);
}

}  // namespace

void add_watch_command(CLI::App& app, Command& chosen) {
  auto flags = std::make_shared<WatchFlags>();
  CLI::App* const command = app.add_subcommand(
      "watch", "Follow a run on the terminal: progress, loss, speed, time, ranks and hosts");
  command->add_option("RUN", flags->folder, "The run's training.output_dir")
      ->required()
      ->type_name("DIR");
  command->add_option("--interval", flags->interval, "Seconds between two looks; default: 1")
      ->check(CLI::Range(0.1, 3600.0));
  command->footer(
      "Examples:\n"
      "  dstrain watch runs/quickstart\n"
      "  ssh -t node dstrain watch /shared/runs/quickstart\n"
      "  dstrain watch runs/quickstart --interval 60 >> progress.txt   # plain lines\n"
      "Reads the run's files alone: the run notices nothing, and goes on when this ends.");
  command->callback([flags, &chosen] { chosen = [flags] { return watch(*flags); }; });
}

}  // namespace dstrain
