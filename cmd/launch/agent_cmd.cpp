// dstrain agent: one host's part of a run. Over SSH it talks to `dstrain launch` through its
// standard input and output; where srun has started it, it connects back to the launcher
// (agent_listener.h).
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <asio.hpp>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/launch/job_secret.h"
#include "cmd/launch/own_agent.h"
#include "cmd/launch/wire_channel.h"
#include "cmd/logging.h"
#include "cmd/rank/rank_env.h"
#include "engine/config/config_error.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/agent_dial.h"
#include "launcher/hosts/local_host.h"
#include "launcher/process/errors.h"

namespace dstrain {
namespace {

constexpr std::chrono::seconds kDialPatience{20};

struct Channel {
  FileDescriptor in;
  FileDescriptor out;
  std::string address;                            ///< the launcher reaches this host by it
  std::unique_ptr<launcher::ChannelSeal> seal{};  ///< nullptr over SSH, which has its own
  std::string secret{};                           ///< shared with the launcher; empty over SSH
};

/// The address that sshd names; where another server names none, the first that this host has.
std::string address_of_login() {
  std::istringstream words(process_environment("SSH_CONNECTION").value_or(""));
  std::string client, client_port, address;
  words >> client >> client_port >> address;
  if (!address.empty()) return address;
  const std::vector<std::string> own = launcher::own_addresses();
  return own.empty() ? "" : own.front();
}

Channel standard_channel() {
  if (isatty(STDIN_FILENO) == 1) {
    throw ConfigError(
        "dstrain agent is not for use by hand: dstrain launch starts it on the hosts of a hostfile "
        "and talks to it over its standard input and output");
  }
  return {FileDescriptor(dup(STDIN_FILENO)), FileDescriptor(dup(STDOUT_FILENO)), address_of_login(),
          nullptr};
}

Channel dialled_channel(asio::io_context& loop, const std::string& places) {
  const std::optional<std::string> secret = process_environment(kAgentSecretVariable);
  if (!secret || secret->empty()) {
    throw ConfigError(
        fmt::format("--connect needs the job's secret in {}; dstrain launch --launcher slurm sets "
                    "both",
                    kAgentSecretVariable));
  }
  unsetenv(kAgentSecretVariable);  // it is not for the ranks
  std::vector<launcher::Place> launcher_at;
  try {
    launcher_at = launcher::parse_places(places);
  } catch (const std::invalid_argument& error) {
    throw ConfigError(fmt::format("--connect {}: {}", places, error.what()));
  }
  const std::string name =
      process_environment("SLURMD_NODENAME").value_or(launcher::own_hostname());
  try {
    launcher::DialledLauncher dialled = launcher::dial_launcher(
        loop, launcher_at, name, hash_under(*secret), encrypted_channels(), kDialPatience);
    const int socket = dialled.socket.release();
    return {FileDescriptor(socket), FileDescriptor(dup(socket)), address_of_socket(socket),
            std::move(dialled.seal), *secret};
  } catch (const std::runtime_error& error) {
    throw launcher::PreflightError(fmt::format("{}: {}", name, error.what()));
  }
}

int serve(const std::string& connect) {
  set_up_logging("[agent] ");
  // Its parent is sshd's process for this session, or Slurm's. The end of the channel also shows
  // that it is gone, unless something else holds that open.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  asio::io_context loop;
  Channel channel = connect.empty() ? standard_channel() : dialled_channel(loop, connect);
  launcher::AgentOptions own = channel.secret.empty()
                                   ? own_agent_options(std::move(channel.address))
                                   : own_agent_options(std::move(channel.address), channel.secret);
  own.seal = std::move(channel.seal);
  launcher::Agent agent(loop, std::move(channel.in), std::move(channel.out), std::move(own));
  return agent.run() ? kExitSuccess : kExitPeerLost;
}

}  // namespace

void add_agent_command(CLI::App& app, Command& chosen) {
  CLI::App* const command = app.add_subcommand(
      "agent", "Serve one host of a run; dstrain launch starts it on every host, not you");
  command->group("");
  const auto connect = std::make_shared<std::string>();
  command->add_option("--connect", *connect,
                      "Connect back to the launcher at ADDRESS:PORT[,ADDRESS:PORT…] instead");
  command->callback([connect, &chosen] { chosen = [connect] { return serve(*connect); }; });
}

}  // namespace dstrain
