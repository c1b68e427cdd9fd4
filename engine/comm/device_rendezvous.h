// The rendezvous of tensors in the memory of GPUs: decides for each group how they travel.
//
//   one member                    nothing travels
//   every member a GPU of its own NCCL
//   some share a GPU              through the host's memory (staged_communicator.h), as NCCL takes
//   no
//                                 two ranks on one GPU; the group's first rank says so in the log
#pragma once

#include <chrono>
#include <memory>

#include "engine/comm/activity.h"
#include "engine/comm/rendezvous.h"
#include "engine/comm/store.h"
#include "engine/comm/wire_options.h"

namespace dstrain {

struct DeviceRendezvousOptions {
  std::chrono::milliseconds timeout{600'000};         ///< deadline of a collective
  std::chrono::milliseconds connect_timeout{60'000};  ///< deadline of forming a group
  ActivityRecorder* activity = nullptr;               ///< notified of every collective; may be null
  WireSecurity security = WireSecurity::kAuthenticated;  ///< as asked for; NCCL has none of it
};

/// Makes the rendezvous of the rank whose host rendezvous is `host`, for tensors on `device`. All
/// must outlive it and what it makes. Group names must differ from those that others ask `host`
/// for. Tells the other ranks, through `store`, which device this one has.
std::unique_ptr<Rendezvous> make_device_rendezvous(Rendezvous& host,
                                                   Store& store,
                                                   Device& device,
                                                   const DeviceRendezvousOptions& options = {});

}  // namespace dstrain
