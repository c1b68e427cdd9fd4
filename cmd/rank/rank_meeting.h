// RankMeeting: the ranks of a job come together at rank 0's store. Ranks that dstrain launch has
// started know by then what the job computes on; others say what they have found as they arrive,
// and rank 0 answers with what holds for all: no rank begins before all have been heard.
#pragma once

#include <memory>

#include "cmd/rank/rank_env.h"
#include "engine/comm/store.h"
#include "engine/comm/tcp_store.h"
#include "engine/config/config.h"

namespace dstrain {

/// The device that a rank computes on.
struct RankPlace {
  MachineFacts machine;
  int gpu = 0;             ///< of those that this process sees
  std::string gpu_name{};  ///< as its host counts, where that differs; else empty
  int ranks_on_gpu = 1;
};

struct RankMeeting {
  std::unique_ptr<TcpStoreServer> server{};  ///< rank 0's
  std::unique_ptr<Store> store;
  RankPlace place;
};

/// `wish` is the config's training.device. Throws RendezvousError where ranks do not come,
/// ConfigError where what they compute on does not fit together or to the config.
RankMeeting meet(const RankEnv& env, DeviceChoice wish);

}  // namespace dstrain
