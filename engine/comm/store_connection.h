// StoreConnection: a connection as the store's server holds it, with what has come and what has to
// go.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <string_view>

#include "engine/comm/frame_seal.h"
#include "engine/comm/handshake.h"
#include "engine/comm/socket.h"
#include "engine/comm/store_protocol.h"
#include "engine/comm/store_requests.h"

namespace dstrain {

/// The server's side of a connection: a stranger until it has proven the job's token.
struct StoreConnection : StoreClient {
  FileDescriptor socket;
  std::string peer;
  std::string peer_host;
  AcceptingHandshake handshake{store_protocol::kMagic};
  FrameSeal opens;  ///< requests, once it has proven itself
  FrameSeal seals;  ///< answers
  Clock::time_point proof_deadline;
  bool proven = false;
  bool open = true;
  bool sending = false;  ///< epoll watches for room to send, and for nothing else
  std::string in;
  std::string out;
  std::list<StoreConnection>::iterator place;  ///< in the list of its kind

  /// The number of bytes that may still be read now. A client speaks when it has been answered,
  /// never before.
  [[nodiscard]] std::size_t wanted() const {
    if (!proven) {
      return handshake.wanted();
    }
    constexpr std::size_t kUsualFrame = 4096;
    return in.size() < store_protocol::kLengthBytes ? kUsualFrame : whole_bytes() - in.size();
  }
  /// The size of the request that has begun; its length must have been read.
  [[nodiscard]] std::size_t request_bytes() const {
    std::string_view text = in;
    return take_number<std::uint32_t>(text);
  }
  [[nodiscard]] std::size_t whole_bytes() const {
    return store_protocol::kLengthBytes + request_bytes() + store_protocol::kTagBytes;
  }
};

}  // namespace dstrain
