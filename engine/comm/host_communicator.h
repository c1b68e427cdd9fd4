// The communicator of ranks that are processes, over sockets. Every collective is made of the
// mesh's segments (peer_mesh.h).
//
// Reductions are pairwise, not a ring: everybody sends rank r its part of slice r, and r combines
// what came in rank order. A ring moves the same bytes, (size - 1) / size of the buffer each way,
// but adds in another order on every slice and rounds bf16 at every hop; this way the bits are
// those of LocalCommunicator, whatever the number of ranks. A large all-reduce, in segments:
//
//   send     R0 R1 R2 R3 G0 R4 G1 R5 G2 …    R: my part of another's slice, into its window
//   combine              R0    R1    R2      G: my finished slice, straight into its tensor
//
// Where hosts have several members each, what is large crosses the network once for a host
// (across_hosts.h).
#pragma once

#include <chrono>
#include <memory>

#include "engine/comm/activity.h"
#include "engine/comm/communicator.h"
#include "engine/comm/peer_mesh.h"

namespace dstrain {

/// `mesh` is shared with the rendezvous that made it and says goodbye for it. `timeout` is the one
/// the mesh was made with. `activity` may be nullptr.
std::unique_ptr<Communicator> make_host_communicator(std::shared_ptr<PeerMesh> mesh,
                                                     std::chrono::milliseconds timeout,
                                                     ActivityRecorder* activity);

}  // namespace dstrain
