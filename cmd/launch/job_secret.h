// The secret that the processes of one job share, and how two of them prove to each other that they
// know it. It goes into environments, never onto a command line or into a log.
#pragma once

#include <string>

#include "launcher/agent/agent_listener.h"

namespace dstrain {

/// The variable through which agents that connect back get it from the program that starts them.
constexpr const char* kAgentSecretVariable = "DSTRAIN_AGENT_SECRET";

/// 32 random bytes in hexadecimal.
std::string make_job_secret();
/// The token that nodes started by hand share: the file's content without white space around it, or
/// where no file is named that of DSTRAIN_TOKEN. Throws launcher::UsageError where there is none,
/// where it can be guessed (token_strength.h), or where others may read the file; each says how to
/// make one.
std::string read_job_token(const std::string& file);
/// The secret of one attempt's ranks, which agents that connect back derive themselves from what
/// they share with the launcher and from a salt: sent over their connection, it would travel in the
/// clear.
std::string derive_rank_secret(const std::string& shared, const std::string& salt);
/// Returns the function that computes HMAC-SHA-256 under the secret.
launcher::KeyedHash hash_under(std::string secret);

}  // namespace dstrain
