// The command line of OpenSSH's client for one host, and what its own words mean when it ends
// without having logged in.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "launcher/hosts/host_failure.h"

namespace dstrain::launcher {

struct OpensshOptions {
  std::string program{};      ///< the path of ssh
  std::string config_file{};  ///< empty: the user's and the system's
  std::uint16_t port = 0;     ///< for hosts that give none; 0: as configured
  std::chrono::seconds connect_timeout{20};
  std::chrono::seconds silence_limit{5};  ///< a host that does not answer for so long is lost
  bool accept_new_host_keys = false;
};

/// ssh's exit code for its own failures.
constexpr int kOpensshFailed = 255;

/// `host` as in the hostfile. Throws HostfileError.
std::vector<std::string> openssh_command(const OpensshOptions& options,
                                         const std::string& host,
                                         const std::vector<std::string>& remote_argv);

/// `words` is its stderr; `why`, a clause, says what happened where its stderr is empty.
HostFailure explain_openssh(const OpensshOptions& options,
                            const std::string& host,
                            const std::string& words,
                            const std::string& why);

/// Whether a host on the way accepted the connection and closed it before the login, as an sshd
/// does when too many log in at the same time (MaxStartups), all through one jump host for example.
bool was_turned_away(const std::string& words);

}  // namespace dstrain::launcher
