// dstrain: parses the command line, runs the command, and turns what it throws into one sentence
// and an exit code.
#include <csignal>
#include <cstdio>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/version.h"
#include "engine/spec/config_error.h"

namespace {

/// Whatever we open must not become stdin, stdout or stderr by accident.
void fill_standard_files() {
  int fd = 0;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd > STDERR_FILENO) close(fd);
}

int run(int argc, char** argv) {
  CLI::App app("Distributed training of transformer language models.", "dstrain");
  app.set_version_flag("--version", dstrain::version_text);
  app.require_subcommand(1);
  app.footer("Every command explains itself: dstrain COMMAND --help");
  dstrain::Command chosen;
  dstrain::add_launch_command(app, chosen);
  dstrain::add_train_command(app, chosen);
  dstrain::add_agent_command(app, chosen);
  dstrain::add_estimate_memory_command(app, chosen);
  dstrain::add_prepare_data_command(app, chosen);
  dstrain::add_convert_checkpoint_command(app, chosen);
  dstrain::add_generate_command(app, chosen);
  if (argc > 1 && argv[1][0] != '-') {
    const auto is_meant = [&](const CLI::App* command) { return command->check_name(argv[1]); };
    if (app.get_subcommands(is_meant).empty()) {
      throw dstrain::ConfigError(
          fmt::format("there is no command \"{}\"; dstrain --help lists them", argv[1]));
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? dstrain::kExitSuccess : dstrain::kExitUsage;
  }
  return chosen();
}

}  // namespace

int main(int argc, char** argv) {
  fill_standard_files();
  std::signal(SIGPIPE, SIG_IGN);  // a reader that left is an error of write(), not a death
  try {
    return run(argc, argv);
  } catch (...) {
    const dstrain::Failure failure = dstrain::describe_current_exception();
    fmt::print(stderr, "dstrain: error: {}\n", failure.message);
    return failure.exit_code;
  }
}
