// Fleet: the hosts of a run as `dstrain launch` reaches them: an agent on each, which the launcher
// talks to, started over SSH, by Slurm or by hand; on this machine an agent as well where other
// hosts take part, so that everything is done in one way only. A run on this machine alone has no
// fleet: its ranks are children of the launcher.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <asio.hpp>

#include "cmd/launch/agent_starter.h"
#include "launcher/agent/agent_host.h"
#include "launcher/agent/agent_protocol.h"
#include "launcher/agent/agent_spawner.h"
#include "launcher/hosts/host_failure.h"
#include "launcher/hosts/hostfile.h"

namespace dstrain {

/// Whether any of these hosts is another machine. Asks no name server.
bool has_other_machines(const std::vector<launcher::Host>& hosts);

class Fleet {
 public:
  /// `may_install`: the starter may send this build to hosts that lack it.
  enum class MayInstall : std::uint8_t { kNo, kYes };
  Fleet(asio::io_context& loop, std::unique_ptr<AgentStarter> starter, MayInstall may_install);
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;
  /// Dismisses the agents.
  ~Fleet();

  /// Makes sure that each host has an agent of this build; those that have one are left alone. Runs
  /// the loop, with all hosts at once. Returns the failures, in the order of the hosts.
  std::vector<launcher::HostFailure> connect(const std::vector<launcher::Host>& hosts);

  /// The agent of a host that has been connected to.
  [[nodiscard]] launcher::AgentHost& agent_of(const std::string& host) const;
  /// The same, or nullptr if it does not answer (any more).
  [[nodiscard]] const launcher::AgentHost* agent_if_serving(const std::string& host) const;
  /// The hosts that answer; a machine with several names counts under the first.
  [[nodiscard]] std::vector<launcher::Host> serving(const std::vector<launcher::Host>& hosts) const;
  /// The address by which the other hosts reach it, according to its agent or the launcher's
  /// routes.
  [[nodiscard]] std::string address_of(const std::string& host) const;
  /// A spawner over the agents that these hosts have now.
  [[nodiscard]] std::unique_ptr<launcher::Spawner> spawner(
      const std::vector<launcher::Host>& hosts) const;

  /// Asks all hosts at once and runs the loop. An answer that does not come in time is an error,
  /// too. The answers are in the order of the hosts.
  std::vector<launcher::HostAnswer> ask(const std::vector<launcher::Host>& hosts,
                                        const launcher::HostQuestion& question,
                                        std::chrono::milliseconds patience = std::chrono::seconds{
                                            20});

  /// The GPUs of each machine behind the hosts that answer, by machine_id().
  std::map<std::string, launcher::HostAnswer> ask_for_gpus(
      const std::vector<launcher::Host>& hosts);

  [[nodiscard]] bool is_own(const std::string& host) const { return starter_->is_own(host); }
  /// The same for all names of this machine, and for no other host.
  [[nodiscard]] std::string machine_id(const std::string& host) const {
    return is_own(host) ? "" : host;
  }
  [[nodiscard]] std::string shared_secret() const { return starter_->shared_secret(); }
  [[nodiscard]] bool has_own_environment() const { return starter_->has_own_environment(); }

  /// Sets how the run ended, which is sent to the agents when they are dismissed.
  void set_farewell(launcher::Bye farewell) { farewell_ = std::move(farewell); }
  /// Ends the agents, and with them what they still run; waits a little, and warns of those that
  /// did not end.
  void dismiss();

 private:
  struct Member;

  /// nullptr if it has never been connected to.
  [[nodiscard]] Member* find(const std::string& host) const;
  Member& member_of(const std::string& host);
  using Start = void (AgentStarter::*)(const std::vector<std::string>& hosts,
                                       const AgentStarter::OnStarted& each);
  void start_agents(const std::vector<Member*>& members, Start start);
  void greet(Member& member, std::unique_ptr<launcher::ByteStream> stream, int& waiting);
  void judge_build(Member& member) const;
  [[nodiscard]] std::string path_of(const Member& member) const;

  asio::io_context& loop_;
  const bool may_install_;
  const std::string own_path_;
  const std::string own_build_;
  const std::unique_ptr<AgentStarter> starter_;
  launcher::Bye farewell_;
  /// Listed in the order in which they were first asked for.
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace dstrain
