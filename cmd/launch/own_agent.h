// The options of an agent of this machine, whoever started it.
#pragma once

#include <string>

#include "launcher/agent/agent.h"

namespace dstrain {

/// `address` is the one by which this host was reached; empty: unknown.
launcher::AgentOptions own_agent_options(std::string address);
/// The options of an agent that shares a secret with the launcher, from which it derives the secret
/// of its ranks.
launcher::AgentOptions own_agent_options(std::string address, std::string shared_secret);

/// The numeric address of this end of a connection; empty where there is none.
std::string address_of_socket(int socket);

}  // namespace dstrain
