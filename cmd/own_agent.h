// What an agent of this machine says of it, whoever started the agent.
#pragma once

#include <string>

#include "launcher/agent.h"

namespace dstrain {

/// `address`: by which this host was reached; empty: nobody knows.
launcher::AgentOptions own_agent_options(std::string address);

/// This end of a connection, numeric; empty where there is none.
std::string address_of_socket(int socket);

}  // namespace dstrain
