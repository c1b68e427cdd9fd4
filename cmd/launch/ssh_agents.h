// SshAgents: agents as programs that SSH runs on the hosts of a hostfile.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <asio.hpp>

#include "cmd/launch/agent_places.h"
#include "cmd/launch/agent_starter.h"
#include "cmd/launch/fleet_options.h"
#include "launcher/ssh/ssh_connection.h"

namespace dstrain {

class SshAgents final : public AgentStarter {
 public:
  SshAgents(asio::io_context& loop, const FleetOptions& options);

  void start(const std::vector<std::string>& hosts, const OnStarted& each) override;
  void install_and_start(const std::vector<std::string>& hosts, const OnStarted& each) override;
  [[nodiscard]] std::string path_on(const std::string& host) const override;

 private:
  using Connections = std::vector<launcher::SshConnection*>;  ///< nullptr: reported already

  Connections log_in(const std::vector<std::string>& hosts, const OnStarted& each);
  void run_agents(const std::vector<std::string>& hosts,
                  const Connections& connections,
                  const OnStarted& each);
  [[nodiscard]] std::string in_ssh_form(const std::string& host) const;

  asio::io_context& loop_;
  const FleetOptions options_;
  AgentPlaces places_;
  launcher::SshConnector connector_;
  std::map<std::string, std::unique_ptr<launcher::SshConnection>> connections_;  // by host
};

}  // namespace dstrain
