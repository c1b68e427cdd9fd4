// Joining a run that node 0 leads: a node that was started by hand finds node 0, proves that it
// knows the job's token, and from then on is an agent (launcher/agent/agent.h): it starts its ranks
// as node 0 says, and ends with it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "cmd/launch/node_card.h"
#include "launcher/agent/agent_dial.h"

namespace dstrain {

struct NodeJoinOptions {
  std::string address;  ///< node 0's name or address
  std::uint16_t port = 0;
  std::string token;
  NodeCard own;
  std::chrono::seconds patience{0};  ///< with node 0's first answer
};

/// Takes part until the run has ended. Returns the exit code that node 0's launcher ends with, or
/// that of a signal which ended this one. Throws RendezvousError where node 0 does not let it in.
int join_run(const NodeJoinOptions& options);

/// The addresses of a name, or of a number itself. Throws std::runtime_error, a clause, if there
/// are none (yet).
std::vector<launcher::Place> places_of(const std::string& host, std::uint16_t port);

}  // namespace dstrain
