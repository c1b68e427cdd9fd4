// dstrain report: one page about one run, or several side by side.
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/report/report_page.h"
#include "engine/base/amount_text.h"
#include "engine/checkpoint/durable_files.h"
#include "engine/config/config_error.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

struct ReportFlags {
  std::vector<std::string> folders;
  std::string output = "report.html";
};

/// The last parts of the folders' paths, as many as tell them apart.
std::vector<std::string> short_names(const std::vector<std::string>& folders) {
  std::vector<std::vector<std::string>> parts;
  for (const std::string& folder : folders) {
    auto& own = parts.emplace_back();
    for (const fs::path& part : fs::absolute(folder).lexically_normal()) {
      if (!part.empty()) own.push_back(part.string());
    }
  }
  for (std::size_t count = 1;; ++count) {
    std::vector<std::string> names;
    bool is_all = true;
    for (const auto& own : parts) {
      const std::size_t shown = std::min(count, own.size());
      is_all = is_all && shown == own.size();
      fs::path name;
      for (std::size_t i = own.size() - shown; i < own.size(); ++i)
        name /= own[i];
      names.push_back(name.string());
    }
    if (is_all || std::set(names.begin(), names.end()).size() == names.size()) return names;
  }
}

int write_report(const ReportFlags& flags) {
  const std::vector<std::string> names = short_names(flags.folders);
  std::vector<ReportedRun> runs;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const fs::path folder = fs::path(flags.folders[i]).lexically_normal();
    runs.push_back({.name = names[i],
                    .overview = overview_of(folder, std::chrono::milliseconds(0)),
                    .metrics = MetricsColumns(folder)});
  }
  const std::string page = report_page(runs);
  const DurableFiles files;
  const std::string temporary = flags.output + ".tmp";
  files.write_file(temporary, page);
  files.rename(temporary, flags.output);
  fmt::print("{}: {} of {}\n", flags.output, size_text(static_cast<std::int64_t>(page.size())),
             counted(static_cast<std::int64_t>(runs.size()), "run"));
  return kExitSuccess;
}

}  // namespace

void add_report_command(CLI::App& app, Command& chosen) {
  auto flags = std::make_shared<ReportFlags>();
  CLI::App* const command = app.add_subcommand(
      "report",
      "Write a page with the curves, time, memory, starts and config of one or more runs");
  command->add_option("RUN", flags->folders, "The runs' training.output_dir, one or more")
      ->required()
      ->type_name("DIR");
  command->add_option("-o,--output", flags->output, "The page; default: report.html")
      ->type_name("FILE");
  command->footer(
      "Examples:\n"
      "  dstrain report runs/quickstart\n"
      "  dstrain report runs/lr-1e-3 runs/lr-3e-3 --output rates.html\n"
      "The page needs no network and nothing beside it. Several runs are drawn over each other,\n"
      "and the values in which their configs differ are marked. A run may be going on: the page\n"
      "shows it as it is now.");
  command->callback([flags, &chosen] { chosen = [flags] { return write_report(*flags); }; });
}

}  // namespace dstrain
