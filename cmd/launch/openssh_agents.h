// OpensshAgents: agents as programs that OpenSSH's client runs on the hosts of a hostfile: one ssh
// a host for as long as the agent lives, so that all of the user's own configuration holds.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <asio.hpp>

#include "cmd/launch/agent_places.h"
#include "cmd/launch/agent_starter.h"
#include "cmd/launch/fleet_options.h"
#include "launcher/ssh/openssh_command.h"

namespace dstrain {

class OpensshAgents final : public AgentStarter {
 public:
  /// Throws launcher::PreflightError where there is no ssh.
  OpensshAgents(asio::io_context& loop, const FleetOptions& options);

  void start(const std::vector<std::string>& hosts, const OnStarted& each) override;
  void install_and_start(const std::vector<std::string>& hosts, const OnStarted& each) override;
  [[nodiscard]] std::string path_on(const std::string& host) const override;

 private:
  void run_agents(const std::vector<std::string>& hosts, const OnStarted& each);
  using Ended = std::function<void(bool try_again)>;
  /// Begins `count` tasks, not too many at once, and runs the loop until all have ended.
  void in_turns(std::size_t count,
                const std::function<void(std::size_t index, bool is_last_try, Ended ended)>& begin);

  asio::io_context& loop_;
  const launcher::OpensshOptions options_;
  AgentPlaces places_;
};

}  // namespace dstrain
