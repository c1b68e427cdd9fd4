// dstrain runs: the runs in a folder, a line each.
#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/runs/run_overview.h"
#include "engine/base/amount_text.h"
#include "engine/config/config_error.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct RunsFlags {
  std::string folder = "runs";
  bool json = false;
};

struct FoundRun {
  std::string name;  ///< below the folder
  RunOverview run;
};

constexpr std::array kHeads = {"RUN", "STATE", "STEP", "LOSS", "VALIDATION", "TOKENS/S", ""};
using Row = std::array<std::string, kHeads.size()>;

std::string decimals(const std::optional<double>& number, int count) {
  return number ? fmt::format("{:.{}f}", *number, count) : "";
}

Row row_of(const FoundRun& found) {
  const RunOverview& run = found.run;
  const std::string step =
      run.status.metrics_step
          ? fmt::format("{}{}", *run.status.metrics_step,
                        run.total_steps ? fmt::format("/{}", *run.total_steps) : std::string())
          : "";
  const auto speed = number_at(run.last_line, "tokens_per_second");
  return {found.name,
          run_word(run),
          step,
          decimals(number_at(run.last_line, "loss"), 4),
          decimals(run.validation_loss, 4),
          speed ? grouped(static_cast<std::int64_t>(*speed)) : "",
          last_word(run)};
}

void print_table(const std::vector<FoundRun>& runs) {
  std::vector<Row> rows;
  Row heads;
  std::copy(kHeads.begin(), kHeads.end(), heads.begin());
  rows.push_back(heads);
  for (const FoundRun& found : runs) {
    rows.push_back(row_of(found));
  }
  std::array<std::size_t, kHeads.size()> widths{};
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool is_number = i >= 2 && i + 1 < row.size();
      line += is_number ? fmt::format("{:>{}}  ", row[i], widths[i])
                        : fmt::format("{:<{}}  ", row[i], i + 1 < row.size() ? widths[i] : 0);
    }
    fmt::print("{}\n", line.substr(0, line.find_last_not_of(' ') + 1));
  }
}

Json number_or_null(const std::optional<double>& number) {
  return number ? Json(*number) : Json(nullptr);
}

Json to_json(const FoundRun& found) {
  const RunOverview& run = found.run;
  const RunStatus& status = run.status;
  return {
      {"run", found.name},
      {"folder", status.folder.string()},
      {"state", run_word(run)},
      {"step", status.metrics_step ? Json(*status.metrics_step) : Json(nullptr)},
      {"steps", run.total_steps ? Json(*run.total_steps) : Json(nullptr)},
      {"time", status.metrics_time.empty() ? Json(nullptr) : Json(status.metrics_time)},
      {"loss", number_or_null(number_at(run.last_line, "loss"))},
      {"validation_loss", number_or_null(run.validation_loss)},
      {"tokens_per_second", number_or_null(number_at(run.last_line, "tokens_per_second"))},
      {"checkpoint_step", status.checkpoint.empty() ? Json(nullptr) : Json(status.checkpoint_step)},
      {"starts", run.starts.size()},
      {"last_word", last_word(run)}};
}

int list_runs(const RunsFlags& flags) {
  const fs::path folder = flags.folder;
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw ConfigError(fmt::format(
        "{} is not a folder: expected one with runs in it, each its own training.output_dir",
        folder.string()));
  }
  std::vector<FoundRun> runs;
  for (const fs::path& path : find_runs(folder)) {
    const std::string name = path.lexically_relative(folder).string();
    // Foreign heartbeats are not waited for: a list is to be quick.
    runs.push_back(
        {name == "." ? folder.string() : name, overview_of(path, std::chrono::milliseconds(0))});
  }
  if (flags.json) {
    Json list = Json::array();
    for (const FoundRun& found : runs) {
      list.push_back(to_json(found));
    }
    fmt::print("{}\n", list.dump(2, ' ', false, Json::error_handler_t::replace));
  } else if (runs.empty()) {
    fmt::print("no runs in {}\n", folder.string());
  } else {
    print_table(runs);
  }
  return kExitSuccess;
}

}  // namespace

void add_runs_command(CLI::App& app, Command& chosen) {
  auto flags = std::make_shared<RunsFlags>();
  CLI::App* const command = app.add_subcommand(
      "runs", "List the runs in a folder: state, step, loss, speed, and how they ended");
  command->add_option("FOLDER", flags->folder, "Where the runs' folders are; default: runs")
      ->type_name("FOLDER");
  command->add_flag("--json", flags->json, "Print a JSON list");
  command->footer(
      "Examples:\n"
      "  dstrain runs\n"
      "  dstrain runs /scratch/ada --json | jq '.[] | select(.state == \"running\") | .folder'\n"
      "The run of the newest change comes first. Nothing in the folders is changed.");
  command->callback([flags, &chosen] { chosen = [flags] { return list_runs(*flags); }; });
}

}  // namespace dstrain
