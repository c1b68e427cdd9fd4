// How ranks that are threads or processes of a test reach each other.
#pragma once

#include "engine/comm/wire_options.h"

namespace dstrain {

/// Through shared memory, as the ranks of a host do; or through a socket.
inline WireOptions wire_here(HostPath on_one_host = HostPath::kSharedMemory,
                             WireSecurity security = WireSecurity::kAuthenticated) {
  return {.interface_address = "127.0.0.1",
          .secret = "the secret of a job that is a test",
          .security = security,
          .on_one_host = on_one_host};
}

}  // namespace dstrain
