// The options of an agent of this machine, whoever started it.
#pragma once

#include <string>

#include "launcher/agent/agent.h"

namespace dstrain {

/// `address`: by which this host was reached; empty: nobody knows.
launcher::AgentOptions own_agent_options(std::string address);
/// The same of an agent that shares a secret with the launcher, of which it makes its ranks'.
launcher::AgentOptions own_agent_options(std::string address, std::string shared_secret);

/// This end of a connection, numeric; empty where there is none.
std::string address_of_socket(int socket);

}  // namespace dstrain
