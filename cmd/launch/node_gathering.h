// NodeGathering: the nodes of a run that were each started by hand, as the first of them sees them.
// Their launchers connect here and prove that they know the job's token (agent_listener.h); from
// then on each is an agent like those over SSH.
//
//   wait until all have come → the hosts of the run      one that does not fit in ends the start
//   while the run continues: a node that comes back waits here until a restart asks for it
#pragma once

#include <chrono>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <asio.hpp>

#include "cmd/launch/agent_starter.h"
#include "cmd/launch/node_card.h"
#include "launcher/agent/agent_listener.h"
#include "launcher/hosts/hostfile.h"

namespace dstrain {

/// Thrown where another process already listens at the meeting place, perhaps the node that leads.
class GatheringPlaceTaken : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct GatheringPlace {
  std::string address;  ///< it listens on this one; empty: on all
  std::uint16_t port = 0;
};

struct GatheringOptions {
  GatheringPlace place;
  std::string token;
  NodeCard own;                          ///< node 0's
  std::vector<launcher::Host> hostfile;  ///< all nodes; empty: each says its slots itself
  std::chrono::seconds patience{0};
  bool may_restart = false;
};

class NodeGathering final : public AgentStarter {
 public:
  /// Listens. Throws GatheringPlaceTaken, or launcher::PreflightError if it cannot for another
  /// reason.
  NodeGathering(asio::io_context& loop, GatheringOptions options);

  /// Runs the loop until all nodes are there, and returns the hosts in the order of their ranks,
  /// this node first, each under a name of its own. Throws RendezvousError, naming who is missing,
  /// or launcher::UsageError, where a node was started for another run; all others hear of it.
  std::vector<launcher::Host> gather();
  /// Tells nodes that have come, but of which nothing has been asked, that the run is over.
  void dismiss(int exit_code, const std::string& why);

  void start(const std::vector<std::string>& hosts, const OnStarted& each) override;
  [[nodiscard]] std::string path_on(const std::string& host) const override;
  [[nodiscard]] bool is_own(const std::string& host) const override;
  [[nodiscard]] bool has_own_environment() const override { return true; }
  [[nodiscard]] std::string shared_secret() const override { return options_.token; }

 private:
  struct Arrival {
    NodeCard card;
    launcher::ArrivedAgent agent;
  };

  void take_in(launcher::ArrivedAgent agent);
  /// The rank that the node has or gets; 0 if none is free.
  [[nodiscard]] int rank_of(const NodeCard& card) const;
  /// Tells the node why, and hangs up.
  void send_away(std::unique_ptr<launcher::ByteStream> stream, int exit_code, std::string why);
  [[nodiscard]] std::string describe_missing() const;
  [[nodiscard]] std::vector<launcher::Host> name_hosts() const;

  asio::io_context& loop_;
  const GatheringOptions options_;
  std::map<int, Arrival> arrived_;  ///< by node rank; start() takes them
  std::vector<launcher::Host> hosts_;
  std::string misfit_;  ///< why a node that came does not belong here
  std::list<std::unique_ptr<launcher::ByteStream>> leaving_;
  bool is_running_ = false;
  std::optional<launcher::AgentListener> listener_;
};

}  // namespace dstrain
