// ChannelSeal: what keeps the connection of an agent that came by itself secret and whole, once
// both ends have proved that they know the job's secret: someone between them sees and changes
// nothing. The caller provides it, as it does KeyedHash; a channel over SSH needs none.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "launcher/process/byte_stream.h"

namespace dstrain::launcher {

/// Seals and opens at one end of one connection; each direction keeps its order.
class ChannelSeal {
 public:
  ChannelSeal() = default;
  ChannelSeal(const ChannelSeal&) = delete;
  ChannelSeal& operator=(const ChannelSeal&) = delete;
  virtual ~ChannelSeal() = default;

  /// The bytes as they cross the channel.
  virtual std::string seal(std::string_view plain) = 0;
  /// Bytes as they come, however they were cut; calls `tell` with what the other end sealed. Throws
  /// ProtocolError where it is not what the other end sealed.
  virtual void open(std::string_view bytes,
                    const std::function<void(std::string_view plain)>& tell) = 0;
};

/// Makes the seal from a connection's two keys, 32 bytes each.
using MakeChannelSeal = std::function<std::unique_ptr<ChannelSeal>(const std::string& key_out,
                                                                   const std::string& key_in)>;

/// Returns a stream that seals what it writes to `inner`, and opens what comes from it.
std::unique_ptr<ByteStream> sealed_stream(std::unique_ptr<ByteStream> inner,
                                          std::unique_ptr<ChannelSeal> seal);

}  // namespace dstrain::launcher
