// dstrain token: a new token for the ranks or nodes of a run that are each started by hand.
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/launch/job_secret.h"
#include "cmd/logging.h"
#include "engine/base/file_descriptor.h"
#include "launcher/process/errors.h"

namespace dstrain {
namespace {

int make_token(const std::string& file) {
  const std::string line = make_job_secret() + "\n";
  if (file.empty()) {
    fmt::print("{}", line);
    return kExitSuccess;
  }
  set_up_logging();
  const FileDescriptor made(open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!made && errno == EEXIST) {
    throw launcher::UsageError(
        fmt::format("{} already exists, and a job may use its token; give a new name", file));
  }
  if (!made || write(made.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()) ||
      fsync(made.get()) != 0) {
    throw launcher::UsageError(fmt::format("{}: {}", file, std::strerror(errno)));
  }
  spdlog::info("token in {}: only you can read it; --token-file {} on every node", file, file);
  return kExitSuccess;
}

}  // namespace

void add_token_command(CLI::App& app, Command& chosen) {
  const auto file = std::make_shared<std::string>();
  CLI::App* const command = app.add_subcommand(
      "token",
      "Make a new token, which admits the ranks or nodes of a run that you start "
      "yourself");
  command
      ->add_option("FILE", *file,
                   "Write it to this new file, which only you can read; default: print it")
      ->type_name("FILE");
  command->footer(
      "Examples:\n"
      "  export DSTRAIN_TOKEN=$(dstrain token)\n"
      "  dstrain token ~/job.token");
  command->callback([file, &chosen] { chosen = [file] { return make_token(*file); }; });
}

}  // namespace dstrain
