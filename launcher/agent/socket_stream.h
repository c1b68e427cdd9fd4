// SocketStream: a ByteStream over a TCP connection that is there already. The program at its other
// end is not known by more than that: how it ended stays unsaid.
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
