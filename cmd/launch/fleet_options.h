// FleetOptions: how agents get onto other hosts, and where dstrain is there.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace dstrain {

/// The program that starts the agents on other hosts.
enum class HostLauncher : std::uint8_t {
  kSsh,      ///< kLibssh2, and kOpenssh for hosts that it cannot serve
  kLibssh2,  ///< this program itself
  kOpenssh,  ///< the ssh program
  kSlurm
};

struct FleetOptions {
  HostLauncher launcher = HostLauncher::kSsh;
  bool accept_new_host_keys = false;
  std::uint16_t ssh_port = 0;  ///< 0: the hostfile's, the SSH configuration's, 22
  std::string ssh_config{};    ///< empty: the user's and the system's
  std::chrono::seconds connect_timeout{20};
  bool has_connect_timeout = false;  ///< the user gave one
  std::string agent_path{};          ///< dstrain's path on the hosts; empty: its path here
  bool copy_binary = false;
  std::string interface {};  ///< agents connect back by it; empty: by route
  std::string listen{};      ///< an address for them, or "all"; empty: by interface, or by route
};

}  // namespace dstrain
