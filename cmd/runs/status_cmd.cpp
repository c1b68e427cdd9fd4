// dstrain status: who runs in a folder, or ran there, and how far it has come.
#include <chrono>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/runs/run_status.h"
#include "engine/checkpoint/owner/run_owner.h"

namespace dstrain {
namespace {

struct StatusFlags {
  std::string folder;
  bool json = false;
};

int show_status(const StatusFlags& flags) {
  const auto patience = OwnerTiming{}.beat * 3 / 2;  // a heartbeat and a half
  const RunStatus status = look_at_run(flags.folder, patience);
  fmt::print("{}", flags.json ? to_json_text(status) : to_text(status));
  return kExitSuccess;
}

}  // namespace

void add_status_command(CLI::App& app, Command& chosen) {
  auto flags = std::make_shared<StatusFlags>();
  CLI::App* const command = app.add_subcommand(
      "status", "Show who runs, or ran, in a run's folder, and how far the run came");
  command->add_option("DIR", flags->folder, "The run's training.output_dir")
      ->required()
      ->type_name("DIR");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->footer(
      "Examples:\n"
      "  dstrain status runs/quickstart\n"
      "  dstrain status runs/quickstart --json | jq .checkpoint.step\n"
      "Nothing in the folder is changed. A run on another host whose lock is not seen here\n"
      "is watched for its heartbeat, some seconds at most.");
  command->callback([flags, &chosen] { chosen = [flags] { return show_status(*flags); }; });
}

}  // namespace dstrain
