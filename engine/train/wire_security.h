// The config's word for what protects bytes between hosts, as the communicators take it.
#pragma once

#include "engine/comm/wire_options.h"
#include "engine/config/config.h"

namespace dstrain {

inline WireSecurity wire_security(const Config& config) {
  switch (config.network_security) {
    case NetworkSecurity::kEncrypted:
      return WireSecurity::kEncrypted;
    case NetworkSecurity::kTrusted:
      return WireSecurity::kTrusted;
    case NetworkSecurity::kAuthenticated:
      break;
  }
  return WireSecurity::kAuthenticated;
}

}  // namespace dstrain
