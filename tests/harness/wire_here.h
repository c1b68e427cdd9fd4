// How ranks that are threads or processes of a test reach each other.
#pragma once

#include "engine/comm/wire_options.h"

namespace dstrain {

/// Uses Unix sockets, as the ranks of a host do; or TCP, as ranks of different hosts.
inline WireOptions wire_here(bool always_tcp = false,
                             WireSecurity security = WireSecurity::kAuthenticated) {
  return {.interface_address = "127.0.0.1",
          .secret = "the secret of a job that is a test",
          .security = security,
          .always_tcp = always_tcp};
}

}  // namespace dstrain
