// Seals connections between a launcher and agents that came by themselves, in frames of
// ChaCha20-Poly1305 (engine/comm/frame_seal.h), as between ranks with network.security "encrypted".
#pragma once

#include "launcher/agent/channel_seal.h"

namespace dstrain {

launcher::MakeChannelSeal encrypted_channels();

}  // namespace dstrain
