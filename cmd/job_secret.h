// The secret that the processes of one job share, and how two of them prove to each other that they
// know it. It goes into environments, never onto a command line or into a log.
#pragma once

#include <string>

#include "launcher/agent_listener.h"

namespace dstrain {

/// By which agents that connect back get it from what starts them.
constexpr const char* kAgentSecretVariable = "DSTRAIN_AGENT_SECRET";

/// 32 random bytes in hexadecimal.
std::string make_job_secret();
/// HMAC-SHA-256 under it.
launcher::KeyedHash hash_under(std::string secret);

}  // namespace dstrain
