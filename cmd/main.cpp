// dstrain: parses the command line, runs the command, and turns what it throws into one sentence
// and an exit code.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/help/command_table.h"
#include "cmd/help/flag_spelling.h"
#include "cmd/help/help_text.h"
#include "cmd/help/version.h"
#include "cmd/launch/peer_launcher_meaning.h"
#include "cmd/logging.h"
#include "engine/checkpoint/checkpoint_error.h"
#include "engine/config/config_error.h"
#include "kernels/cpu/brief_spinning.h"

namespace {

/// Makes sure that no file we open becomes stdin, stdout or stderr by accident.
void fill_standard_files() {
  int fd = 0;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd > STDERR_FILENO) close(fd);
}

/// Output may still be in a buffer, and the disk that it goes to may be full. A reader that has
/// left had enough.
void finish_output() {
  if (std::fflush(stdout) != 0 && errno != EPIPE) {
    throw dstrain::StorageError(fmt::format("cannot write to stdout: {}", strerror(errno)));
  }
}

void choose_how_threads_wait(int argc, char** argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command == "train" || command == "generate") {
    dstrain::spin_briefly(argv);
  } else {
    dstrain::let_children_spin_briefly();
  }
  prctl(PR_SET_NAME, "dstrain");  // in lists of processes; what starts from /proc/self/exe is "exe"
}

/// --help of the program and of every command.
class Help final : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app,
                        std::string /*name*/,
                        CLI::AppFormatMode /*mode*/) const override {
    return app->get_parent() == nullptr ? dstrain::help_text(dstrain::describe_program(*app))
                                        : dstrain::help_text(dstrain::describe_command(*app));
  }
};

void add_commands(CLI::App& app, dstrain::Command& chosen) {
  app.set_version_flag("--version", dstrain::version_text);
  app.require_subcommand(1);
  app.formatter(std::make_shared<Help>());
  app.footer("dstrain help COMMAND prints the flags of a command.");
  dstrain::add_launch_command(app, chosen);
  dstrain::add_evaluate_command(app, chosen);
  dstrain::add_train_command(app, chosen);
  dstrain::add_agent_command(app, chosen);
  dstrain::add_estimate_memory_command(app, chosen);
  dstrain::add_prepare_data_command(app, chosen);
  dstrain::add_convert_checkpoint_command(app, chosen);
  dstrain::add_generate_command(app, chosen);
  dstrain::add_status_command(app, chosen);
  dstrain::add_runs_command(app, chosen);
  dstrain::add_watch_command(app, chosen);
  dstrain::add_trace_command(app, chosen);
  dstrain::add_why_command(app, chosen);
  dstrain::add_report_command(app, chosen);
  dstrain::add_schema_command(app, chosen);
  dstrain::add_token_command(app, chosen);
  dstrain::add_help_command(app, chosen);
  dstrain::add_completion_command(app, chosen);
  dstrain::add_man_command(app, chosen);
}

int run(int argc, char** argv) {
  CLI::App app("Distributed training of transformer language models.", "dstrain");
  dstrain::Command chosen;
  add_commands(app, chosen);
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && !arguments.front().starts_with('-')) {
    const dstrain::ProgramTable program = dstrain::describe_program(app);
    const dstrain::CommandRow& command = dstrain::find_command(program, arguments.front());
    if (command.name == "launch" || command.name == "train") {
      arguments = dstrain::without_deepspeed_switch(std::move(arguments));
    }
    arguments = dstrain::spell_flags(command, arguments);
  }
  std::reverse(arguments.begin(), arguments.end());  // which CLI11 takes from the end
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    throw dstrain::ConfigError(dstrain::sentence_of(error, app));
  }
  return chosen();
}

}  // namespace

int main(int argc, char** argv) {
  fill_standard_files();
  choose_how_threads_wait(argc, argv);
  std::signal(SIGPIPE, SIG_IGN);  // a reader that left is an error of write(), not a death
  std::signal(SIGXFSZ, SIG_IGN);  // and so is a file that reaches the limit of ulimit -f
  try {
    const int code = run(argc, argv);
    finish_output();
    return code;
  } catch (...) {
    const dstrain::Failure failure = dstrain::describe_current_exception();
    dstrain::print_error(failure.message);
    return failure.exit_code;
  }
}
