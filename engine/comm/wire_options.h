// How the ranks of a job reach each other, and how they recognise each other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dstrain {

/// How frames that leave the host are sealed: the config's network.security.
enum class WireSecurity : std::uint8_t {
  kAuthenticated,  ///< not changed unnoticed
  kEncrypted,      ///< nor read
  kTrusted,        ///< as they are
};
std::string_view name_of(WireSecurity security);

/// How processes of one host reach each other. All but the first is for tests and measurements.
enum class HostPath : std::uint8_t {
  kSharedMemory,  ///< or, where there is none, as kUnixSocket
  kUnixSocket,
  kTcp,  ///< as if they were on different hosts
};

struct WireOptions {
  std::string interface_address;  ///< by which peers of other hosts reach this rank
  std::string secret;             ///< of the job; not empty
  WireSecurity security = WireSecurity::kAuthenticated;
  HostPath on_one_host = HostPath::kSharedMemory;
  /// Ranks of one host that give different numbers behave as if they were on different hosts: for
  /// tests and measurements.
  int host = 0;
};

}  // namespace dstrain
