// Ranks as threads of one process, which most tests of several ranks use.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "engine/comm/rendezvous.h"

namespace dstrain {

/// Element r belongs to rank r's thread. They share one meeting place, which lives as long as any
/// of them or of their communicators. `timeout` is the deadline of a wait for a member.
std::vector<std::unique_ptr<Rendezvous>> make_local_rendezvous(
    int world_size, std::chrono::milliseconds timeout = std::chrono::milliseconds{60'000});

}  // namespace dstrain
