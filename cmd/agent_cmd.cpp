// dstrain agent: one host's part of a run, started by `dstrain launch` over SSH, or by srun.
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <asio.hpp>
#include <sys/prctl.h>
#include <unistd.h>

#include "cmd/build_id.h"
#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/logging.h"
#include "engine/spec/config_error.h"
#include "kernels/cpu/memory_info.h"
#include "launcher/agent.h"

namespace dstrain {
namespace {

int serve() {
  set_up_logging("[agent] ");
  if (isatty(STDIN_FILENO) == 1) {
    throw ConfigError(
        "dstrain agent is not for use by hand: dstrain launch starts it on the hosts of a hostfile "
        "and talks to it over its standard input and output");
  }
  // Its parent is sshd's process for this session. The end of the input tells as well that it is
  // gone, unless something else holds that open.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  asio::io_context loop;
  launcher::Agent agent(loop, launcher::FileDescriptor(dup(STDIN_FILENO)),
                        launcher::FileDescriptor(dup(STDOUT_FILENO)),
                        {.version = own_version(),
                         .build_id = own_build_id(),
                         .available_memory_bytes = read_memory_info().available_bytes,
                         .hash_file = hash_of_file});
  return agent.run() ? kExitSuccess : kExitPeerLost;
}

}  // namespace

void add_agent_command(CLI::App& app, Command& chosen) {
  CLI::App* const command = app.add_subcommand(
      "agent", "One host's part of a run; started by dstrain launch on every host, not by hand");
  command->callback([&chosen] { chosen = serve; });
}

}  // namespace dstrain
