// A port that programs which a test starts can listen at, and nobody else gets meanwhile.
#pragma once

#include <cstdint>

#include <asio.hpp>

namespace dstrain::testing {

/// A port of 127.0.0.1, held by a socket that is bound and does not listen: the system gives the
/// port to no connection and to no socket that asks for any port, but lets a program listen there
/// that asks for it by number with SO_REUSEADDR, as servers do.
class ReservedPort {
 public:
  ReservedPort() : socket_(loop_, asio::ip::tcp::v4()) {
    socket_.set_option(asio::socket_base::reuse_address(true));
    socket_.bind({asio::ip::make_address("127.0.0.1"), 0});
  }
  [[nodiscard]] std::uint16_t number() const { return socket_.local_endpoint().port(); }

 private:
  asio::io_context loop_;
  asio::ip::tcp::acceptor socket_;
};

}  // namespace dstrain::testing
