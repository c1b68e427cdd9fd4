// SshTarget: a host as a hostfile writes it, taken apart: "w0", "user@w0", "w0:2222", "10.0.0.7",
// "fd00::7", "[fd00::7]:2222", "user@[fd00::7%eth0]:2222".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "launcher/process/errors.h"

namespace dstrain::launcher {

struct SshTarget {
  std::string user{};      ///< empty: not given
  std::string host{};      ///< a name or an address, without brackets
  std::uint16_t port = 0;  ///< 0: not given

  bool operator==(const SshTarget&) const = default;
};

/// Throws HostfileError. Several colons without brackets are an IPv6 address and no port.
SshTarget parse_ssh_target(std::string_view written);

}  // namespace dstrain::launcher
