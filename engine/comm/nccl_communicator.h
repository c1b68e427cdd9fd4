// The communicator of ranks that have a GPU each, over NCCL: NVLink, PCIe or the network, whatever
// it finds.
//
// Beside communicator.h: NCCL adds in an order of its own, which depends on the group and the
// machines but not on the run, and rounds bf16 and f16 at every addition; kMax may lose a NaN. It
// does not compare the members' calls: ones that do not match hang, and are reported at the
// deadline.
//
// Every communicator has a thread that watches over it (nccl_watchdog.h): a collective that is not
// done `timeout` after it could have begun, an error of NCCL's own, or a member that gave up ends
// the group, and then every wait for any stream of the device throws Timeout or PeerLost.
#pragma once

#include <memory>
#include <string>

#include "engine/comm/communicator.h"
#include "engine/comm/nccl_group.h"
#include "engine/comm/store.h"
#include "kernels/core/device.h"

namespace dstrain {

/// Collective over the group's members, each on a `device` (a CudaDevice) of its own, as NCCL does
/// not take two ranks on one GPU. `store` and `device` must outlive it. A group of one opens no
/// library and waits for nobody. Throws CudaError where NCCL is not available, Timeout where
/// members do not come, PeerLost where they do and NCCL cannot connect them.
std::unique_ptr<Communicator> make_nccl_communicator(const NcclGroup& group,
                                                     Store& store,
                                                     Device& device,
                                                     const NcclOptions& options);

/// The NCCL that would be used here.
struct NcclLibrary {
  std::string version;   ///< "NCCL 2.28.9"; empty: there is none
  std::string why_none;  ///< a sentence, where there is none
};
NcclLibrary find_nccl();

}  // namespace dstrain
