// NameLookup: a host's addresses, without the event loop ever waiting for a name server.
//
// Each name has a thread of its own: asio's own resolver has one for all, in which a name that
// nobody answers for holds up every host behind it. The thread outlives a lookup that is given up;
// it shares no more with it than a place for the answer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <asio.hpp>

namespace dstrain::launcher {

struct Addresses {
  std::vector<asio::ip::tcp::endpoint> endpoints{};  ///< in the resolver's order of preference
  std::string error{};                               ///< if there are none
};

class NameLookup {
 public:
  /// `family` is AF_UNSPEC, AF_INET or AF_INET6. `done` comes from the event loop.
  NameLookup(asio::io_context& loop,
             const std::string& host,
             std::uint16_t port,
             int family,
             std::function<void(Addresses)> done);
  NameLookup(const NameLookup&) = delete;
  NameLookup& operator=(const NameLookup&) = delete;
  /// `done` is not called any more.
  ~NameLookup();

 private:
  struct Answer;
  void take_answer();

  std::shared_ptr<Answer> answer_;  ///< shared with the thread
  asio::posix::stream_descriptor ready_;
  std::function<void(Addresses)> done_;
  /// Owned by this object alone; handlers hold weak pointers to it.
  std::shared_ptr<const int> alive_ = std::make_shared<const int>(0);
};

}  // namespace dstrain::launcher
