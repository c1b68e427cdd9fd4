// AgentStarter: one way to get an agent of dstrain running on other hosts: over SSH by this program
// (ssh_agents.h), by OpenSSH's (openssh_agents.h), by whichever can (ssh_fallback.h), by srun
// (slurm_agents.h), or by hand (node_gathering.h). The fleet greets what was started.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/hosts/host_failure.h"
#include "launcher/process/byte_stream.h"

namespace dstrain {

/// The phase of failures that install_and_start() mends.
constexpr const char* kBuildPhase = "build";
constexpr const char* kBuildFix =
    "send this one there with --copy-binary, install it there, or give its path with --agent-path";

struct StartedAgent {
  std::unique_ptr<launcher::ByteStream> stream{};
  std::optional<launcher::HostFailure> failure{};  ///< if there is no stream
};

class AgentStarter {
 public:
  /// Called from the event loop, once for each host, with its place in the list.
  using OnStarted = std::function<void(std::size_t index, StartedAgent started)>;

  AgentStarter() = default;
  AgentStarter(const AgentStarter&) = delete;
  AgentStarter& operator=(const AgentStarter&) = delete;
  virtual ~AgentStarter() = default;

  /// Starts a new agent on each of the hosts, all at once. Runs the loop until `each` was called
  /// for all of them.
  virtual void start(const std::vector<std::string>& hosts, const OnStarted& each) = 0;
  /// Does the same where start() found no dstrain, or another build of it: sends this one there
  /// first. Where that is not possible, as here, every host fails.
  virtual void install_and_start(const std::vector<std::string>& hosts, const OnStarted& each);
  /// The path of dstrain on that host.
  [[nodiscard]] virtual std::string path_on(const std::string& host) const = 0;
  /// Whether the host is the machine that the launcher runs on, where it needs no starter.
  [[nodiscard]] virtual bool is_own(const std::string& host) const;
  /// A secret that agents on other hosts know and that does not depend on the way to them: the
  /// ranks' secret is derived from it there. Empty: the way to an agent keeps secrets by itself.
  [[nodiscard]] virtual std::string shared_secret() const { return {}; }
  /// Whether ranks on other hosts have their user's own variables, as ranks here do.
  [[nodiscard]] virtual bool has_own_environment() const { return false; }
};

}  // namespace dstrain
