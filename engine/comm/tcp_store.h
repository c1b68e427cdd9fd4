// TcpStore: the Store of a job whose ranks are processes. Rank 0 serves it in a thread of its own
// (TcpStoreServer); every rank, rank 0 too, uses it over TCP (make_tcp_store).
//
// Only a process that knows the job's token gets in, and the token itself never travels: both ends
// prove it by keys that they make of it for this connection alone (handshake.h), so that a stranger
// who listens, or who took the port before rank 0 did, learns nothing that helps. What follows is
// sealed and encrypted under those keys: an attacker between the two can cut it, but neither change
// nor read it.
//
// Strangers cost little, and within bounds: at most 4096 unproven connections at a time (a newcomer
// displaces the oldest, so ranks always get in), 76 bytes of buffer each, 5 seconds to prove
// themselves. The limit is that high because the ranks of a large job are strangers too, and come
// all at once.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "engine/comm/socket.h"
#include "engine/comm/store.h"

namespace dstrain {

/// The store does not take this rank: wrong token, or another version of the protocol. Trying again
/// would not help.
class StoreRefused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct TcpStoreLimits {
  std::size_t strangers = 4096;  ///< and never more than half of the descriptors there are
};

class TcpStoreServer {
 public:
  /// Listens on `address` ("" for every interface) at `port` (0: any free one) and serves until
  /// destroyed. Throws PortInUse. `token` must not be empty. Raises this process's limit on open
  /// descriptors as far as it may: each rank takes one.
  TcpStoreServer(const std::string& address,
                 std::uint16_t port,
                 std::string token,
                 const TcpStoreLimits& limits = {});
  /// The same on a socket that listens already, and does not block.
  TcpStoreServer(FileDescriptor listener, std::string token, const TcpStoreLimits& limits = {});
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  [[nodiscard]] std::uint16_t port() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

/// Connects, trying until `connect_deadline` has passed since ranks start in any order. Throws
/// Timeout if nobody answers, StoreRefused if the token is wrong; its calls throw PeerLost when
/// rank 0 is gone. Safe to use from several threads at once: a long `get` holds up nobody else.
std::unique_ptr<Store> make_tcp_store(
    std::string host,
    std::uint16_t port,
    std::string token,
    std::chrono::milliseconds connect_deadline = std::chrono::milliseconds{60'000});

}  // namespace dstrain
