// Converts the config's choice of what protects bytes between hosts to the communicators' type.
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
