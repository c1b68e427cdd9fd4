// Checks by its key whether the host at the other end of a session is the one that is known.
#pragma once

#include <libssh2.h>

#include "launcher/ssh/known_hosts.h"
#include "launcher/ssh/ssh_config.h"

namespace dstrain::launcher {

/// Called before the handshake: asks for a key of a type that is known for this host, if any is.
void prefer_known_key_types(LIBSSH2_SESSION* session,
                            const SshHostSettings& host,
                            const KnownHosts& known_hosts);

/// Called after it. Throws SshFailure unless the key is known, or new and `accept_new` is set; a
/// new key is known from then on.
void check_host_key(LIBSSH2_SESSION* session,
                    const SshHostSettings& host,
                    KnownHosts& known_hosts,
                    bool accept_new);

}  // namespace dstrain::launcher
