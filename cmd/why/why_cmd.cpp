// dstrain why: where the time of a run's last steps went, and what would help.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/runs/run_overview.h"
#include "cmd/why/findings.h"
#include "cmd/why/priced_run.h"
#include "cmd/why/step_account.h"

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;

struct WhyFlags {
  std::string folder;
  std::int64_t steps = 100;
  bool json = false;
};

struct Part {
  std::string name;  ///< for scripts
  std::string words;
  double seconds;
  std::string planned{};  ///< what the plan says of it
};

std::vector<Part> parts_of(const RunOverview& run, const StepAccount& account) {
  const auto sent = [&](WaitFor whom) {
    return account.communication[static_cast<std::size_t>(whom)];
  };
  const double idle = planned_idle_share(run);
  return {{"compute", "computing", account.compute},
          {"communication.data", "gradients and parameters, data-parallel", sent(WaitFor::kData)},
          {"communication.context", "keys and values, context-parallel", sent(WaitFor::kContext)},
          {"communication.tensor", "activations, tensor-parallel", sent(WaitFor::kTensor)},
          {"communication.experts", "rows of experts", sent(WaitFor::kExperts)},
          {"communication.all", "norms and reports, all ranks", sent(WaitFor::kAll)},
          {"pipeline", "waiting for other stages", account.pipeline,
           idle > 0.0 ? fmt::format("{:.1f} % by the schedule", 100.0 * idle) : ""},
          {"straggler", "waiting for slower ranks", account.straggler},
          {"data", "waiting for data", account.data},
          {"checkpoint", "checkpoints", account.checkpoint},
          {"evaluation", "evaluations", account.evaluation},
          {"host", "the rest of rank 0's steps", account.host},
          {"unexplained", "between steps", account.unexplained()}};
}

std::string seconds_text(double seconds) {
  if (std::abs(seconds) < 1e-3) return fmt::format("{:.0f} µs", seconds * 1e6);
  if (std::abs(seconds) < 1.0) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

/// By the price, which knows what comes instead; where there is none, by what the parts that it is
/// about take.
std::string gain_text(const Finding& finding) {
  if (!finding.price) return fmt::format("saves at most {:.1f} %", 100.0 * finding.gain);
  const double percent = 100.0 * *finding.price;
  return percent >= 0.0 ? fmt::format("saves {:.1f} %, by price", percent)
                        : fmt::format("costs {:.1f} %, by price", -percent);
}

void print_text(const RunOverview& run,
                const StepAccount& account,
                const std::vector<Finding>& findings) {
  const auto steps = static_cast<double>(account.steps());
  fmt::print("{}, steps {} to {}, {} each\n\n", run.status.folder.string(), account.first_step,
             account.last_step, seconds_text(account.wall / steps));
  constexpr double kBar = 32.0;
  for (const Part& part : parts_of(run, account)) {
    const double share = part.seconds / account.wall;
    if (std::abs(share) < 0.0005) continue;
    std::string bar;
    for (int i = 0; i < std::lround(kBar * std::max(0.0, share)); ++i)
      bar += "█";
    fmt::print("  {:<40}{:>6.1f} %{:>11}  {}{}{}\n", part.words, 100.0 * share,
               seconds_text(part.seconds / steps), bar,
               bar.empty() || part.planned.empty() ? "" : " ", part.planned);
  }
  if (findings.empty()) {
    fmt::print("\nNothing but computing takes a thirtieth of the time or more.\n");
    return;
  }
  fmt::print("\nWhat takes the time, beside computing:\n");
  for (std::size_t i = 0; i < findings.size(); ++i) {
    const Finding& finding = findings[i];
    fmt::print("  {}. {:.1f} %: {}.\n", i + 1, 100.0 * finding.share, finding.what);
    if (!finding.advice.empty()) fmt::print("     {}.\n", finding.advice);
    if (!finding.sets.empty()) {
      fmt::print("     --set {}   {}\n", fmt::join(finding.sets, " --set "), gain_text(finding));
    }
  }
}

void print_json(const RunOverview& run,
                const StepAccount& account,
                const std::vector<Finding>& findings) {
  Json parts = Json::object();
  for (const Part& part : parts_of(run, account)) {
    parts[part.name] = part.seconds;
  }
  Json list = Json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"what", finding.what},
                    {"share", finding.share},
                    {"advice", finding.advice},
                    {"set", finding.sets},
                    {"gain", finding.gain},
                    {"priced_gain", finding.price ? Json(*finding.price) : Json(nullptr)}});
  }
  const Json json = {{"folder", run.status.folder.string()},
                     {"first_step", account.first_step},
                     {"last_step", account.last_step},
                     {"wall_seconds", account.wall},
                     {"seconds", parts},
                     {"planned_idle_share", planned_idle_share(run)},
                     {"slowest_rank", account.slowest_rank()},
                     {"slower_by", account.slower_by},
                     {"findings", list}};
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

int explain(const WhyFlags& flags) {
  const RunOverview run = overview_of(flags.folder, std::chrono::milliseconds(0));
  // Steps of the last start, without its first: before that, the run was not there for a while.
  std::int64_t steps = flags.steps;
  if (!run.starts.empty()) {
    steps = std::clamp<std::int64_t>(run.step() - run.starts.back().step - 1, 1, steps);
  }
  const StepAccount account = account_of(flags.folder, steps);
  std::vector<Finding> findings = findings_of(run, account, rank_seconds(flags.folder));
  const PricedRun priced(run, account);
  for (Finding& finding : findings) {
    finding.price = priced.gain(finding.sets);
  }
  if (flags.json) {
    print_json(run, account, findings);
  } else {
    print_text(run, account, findings);
  }
  return kExitSuccess;
}

}  // namespace

void add_why_command(CLI::App& app, Command& chosen) {
  auto flags = std::make_shared<WhyFlags>();
  CLI::App* const command = app.add_subcommand(
      "why",
      "Say where the time of a run's last steps went, whom it waits for, and what would help");
  command->add_option("RUN", flags->folder, "The run's training.output_dir")
      ->required()
      ->type_name("DIR");
  command->add_option("--steps", flags->steps, "How many of the last steps; default: 100")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000}));
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->footer(
      "Examples:\n"
      "  dstrain why runs/quickstart\n"
      "  dstrain why runs/quickstart --steps 10 --json | jq .findings\n"
      "Also of a run that is going on. Every rank counts how long it waits, by whom for; the\n"
      "least wait of a group is what travelling takes, the rest is for its slowest member.");
  command->callback([flags, &chosen] { chosen = [flags] { return explain(*flags); }; });
}

}  // namespace dstrain
