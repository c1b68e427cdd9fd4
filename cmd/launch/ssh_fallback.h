// SshFallback: agents over SSH by this program's own client, and by OpenSSH's for the hosts where
// that can do more: behind a jump host, say, or with an RSA key.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include <asio.hpp>

#include "cmd/launch/agent_starter.h"
#include "cmd/launch/fleet_options.h"
#include "cmd/launch/openssh_agents.h"
#include "cmd/launch/ssh_agents.h"

namespace dstrain {

class SshFallback final : public AgentStarter {
 public:
  SshFallback(asio::io_context& loop, const FleetOptions& options);

  void start(const std::vector<std::string>& hosts, const OnStarted& each) override;
  void install_and_start(const std::vector<std::string>& hosts, const OnStarted& each) override;
  [[nodiscard]] std::string path_on(const std::string& host) const override;

 private:
  struct Part {
    std::vector<std::string> hosts{};
    std::vector<std::size_t> indices{};  ///< in the caller's list of hosts
    [[nodiscard]] OnStarted telling(const OnStarted& each) const;
    void add(const std::string& host, std::size_t index);
  };
  struct Parts {
    Part own{};
    Part openssh{};
  };
  [[nodiscard]] Parts split(const std::vector<std::string>& hosts) const;

  asio::io_context& loop_;
  const FleetOptions options_;
  SshAgents own_;
  std::optional<OpensshAgents> openssh_;  ///< once it is needed
  std::set<std::string> by_openssh_;      ///< hosts
};

}  // namespace dstrain
