// SocketStream: a ByteStream over a TCP connection that already exists. Nothing else is known of
// the program at its other end, so how it ended is not reported.
#pragma once

#include <memory>

#include <asio.hpp>

#include "launcher/process/byte_stream.h"

namespace dstrain::launcher {

class SocketStream final : public ByteStream {
 public:
  explicit SocketStream(asio::ip::tcp::socket socket);
  ~SocketStream() override;

  void listen(StreamEvents events) override;
  void write(std::string_view bytes) override;
  [[nodiscard]] std::size_t queued_bytes() const override;
  void close_input() override;
  void close() override;

 private:
  class Connection;
  /// Shared with the handlers that wait in the event loop; they find it closed after destruction.
  std::shared_ptr<Connection> connection_;
};

}  // namespace dstrain::launcher
