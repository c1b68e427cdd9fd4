// How the members of a group find and recognise each other: each listens, one all-to-all of the
// store tells every other where, and in each pair the one of higher rank connects.
//
//   one host (host_identity.h)  a Unix socket under an abstract name of 128 random bits. The kernel
//                               says whose process is at the other end, which must be this user's,
//                               and nobody but root can get between; so its frames need no seal.
//                               What is large goes through shared memory (shared_memory.h).
//   otherwise                   TCP, and every frame sealed as network.security says.
//
// Both ends prove on every connection that they know the job's secret (handshake.h). The listeners
// are there only while a group forms. Strangers cost it neither its forming nor memory: each has a
// small fixed buffer and five seconds, and when there are many the oldest makes room.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "engine/comm/frame_seal.h"
#include "engine/comm/host_identity.h"
#include "engine/comm/socket.h"
#include "engine/comm/store.h"
#include "engine/comm/wire_options.h"

namespace dstrain {

struct PeerGroup {
  std::string name;
  std::vector<int> members;  ///< world ranks
  int rank = 0;              ///< of this process, within them

  [[nodiscard]] int size() const { return static_cast<int>(members.size()); }
};

/// A connection to one other member, proven at both ends, and the seals of its frames.
struct MetPeer {
  FileDescriptor socket;
  FrameSeal seals;  ///< of what goes out
  FrameSeal opens;  ///< of what comes in
  HostIdentity host;
  bool on_this_host = false;
};

/// Returns the members by rank within the group; of this one, only its host. Throws Timeout, naming
/// who did not come, PeerLost, or InternalError where members have different ideas of the group.
std::vector<MetPeer> meet_peers(const PeerGroup& group,
                                const WireOptions& options,
                                Store& store,
                                std::chrono::milliseconds timeout);

}  // namespace dstrain
