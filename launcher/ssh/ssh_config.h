// SshConfig: how to log in to a host, from what the hostfile says and from the user's own
// ~/.ssh/config and /etc/ssh/ssh_config, read as OpenSSH reads them: the first value of a directive
// that applies to the host counts.
//
// Honoured: Host, Match (all, host, originalhost, user, localuser), Include, HostName, Port, User,
// IdentityFile, IdentitiesOnly, IdentityAgent, UserKnownHostsFile, GlobalKnownHostsFile,
// HostKeyAlias, StrictHostKeyChecking, ConnectTimeout, AddressFamily, BindAddress. A directive that
// would change where or as whom one arrives and is not honoured (ProxyJump, CertificateFile, …) is
// an error for the hosts that it applies to, never ignored; so is what cannot be evaluated here
// (Match exec). The error says that OpenSSH's client would do it. Directives that have no bearing
// on a program started by a program (forwarding, terminals, multiplexing, the choice of ciphers)
// are ignored.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/ssh/ssh_config_file.h"

namespace dstrain::launcher {

enum class HostKeyPolicy : std::uint8_t {
  kStrict,    ///< only keys that are known. Also for "ask": nobody is there to be asked
  kAcceptNew  ///< also for "no": a changed key is refused nevertheless
};

enum class AddressFamily : std::uint8_t { kAny, kIpv4, kIpv6 };

/// The user whose machine this is: what "~", "%d", "%u" and "%l" mean, and where the agent listens.
struct SshUser {
  std::string home{};
  std::string name{};
  std::string hostname{};
  std::string agent_socket{};  ///< SSH_AUTH_SOCK, or empty

  static SshUser of_this_process();
};

/// How to log in to one host, with every question answered.
struct SshHostSettings {
  std::string written{};    ///< as in the hostfile, and in messages
  std::string host_name{};  ///< name or address to connect to
  std::uint16_t port = 22;
  std::string user{};
  std::string bind_address{};
  AddressFamily family = AddressFamily::kAny;
  std::optional<std::chrono::seconds> connect_timeout{};
  std::string agent_socket{};                 ///< empty: no agent
  std::vector<std::string> identity_files{};  ///< private keys; need not exist
  bool identities_only = false;               ///< take only these from the agent
  std::string host_key_alias{};               ///< empty: known as host_name
  std::vector<std::string> known_hosts{};     ///< the user's first; new keys go to the first
  std::size_t user_known_hosts = 0;           ///< how many of them are the user's
  HostKeyPolicy host_key_policy = HostKeyPolicy::kStrict;

  /// The name under which known_hosts has it: "w0", or "[w0]:2222".
  [[nodiscard]] std::string known_as() const;
};

class SshConfig {
 public:
  /// A configuration without any file.
  explicit SshConfig(SshUser user) : user_(std::move(user)) {}
  /// Files need not exist. Throws SshConfigError.
  SshConfig(SshUser user, const std::string& user_file, const std::string& system_file);
  /// ~/.ssh/config and /etc/ssh/ssh_config.
  static SshConfig of_this_process();

  /// `written` as in the hostfile. Throws HostfileError or SshConfigError.
  [[nodiscard]] SshHostSettings settings_for(const std::string& written) const;

 private:
  SshUser user_;
  std::vector<std::vector<SshDirective>> files_;  ///< the user's, then the system's
};

}  // namespace dstrain::launcher
