#include "launcher/agent/socket_stream.h"

#include <array>
#include <string>
#include <utility>

namespace dstrain::launcher {

class SocketStream::Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(asio::ip::tcp::socket socket) : socket_(std::move(socket)) {}

  [[nodiscard]] std::size_t queued_bytes() const { return waiting_.size() + writing_.size(); }

  void listen(StreamEvents events) {
    const bool first = !events_.on_closed;
    events_ = std::move(events);
    if (first) read_more();
  }

  void write(std::string_view bytes) {
    if (!socket_.is_open() || input_ends_) return;
    waiting_ += bytes;
    write_more();
  }

  void close_input() {
    input_ends_ = true;
    if (queued_bytes() == 0) shut_down_input();
  }

  void close() {
    asio::post(socket_.get_executor(),
               [self = shared_from_this()] { self->end("it was abandoned"); });
  }

  /// No event is reported after it.
  void abandon() {
    events_ = {};
    end("");
  }

 private:
  void read_more() {
    socket_.async_read_some(
        asio::buffer(buffer_),
        [self = shared_from_this()](const asio::error_code& error, std::size_t size) {
          if (!self->socket_.is_open()) return;
          const auto on_data = self->events_.on_data;  // a copy: it may replace itself from within
          if (size > 0 && on_data) on_data({self->buffer_.data(), size});
          if (error == asio::error::eof) return self->end("the other end closed the connection");
          if (error) return self->end(error.message());
          self->read_more();
        });
  }

  void write_more() {
    if (!writing_.empty() || waiting_.empty()) return;
    writing_ = std::exchange(waiting_, {});
    asio::async_write(socket_, asio::buffer(writing_),
                      [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                        self->writing_.clear();
                        if (!self->socket_.is_open()) return;
                        if (error) return self->end(error.message());
                        self->write_more();
                        if (self->input_ends_ && self->queued_bytes() == 0) {
                          self->shut_down_input();
                        }
                      });
  }

  void shut_down_input() {
    asio::error_code ignored;  // if it has ended already, the next read says so
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  }

  void end(const std::string& why) {
    if (!socket_.is_open()) return;
    asio::error_code ignored;
    socket_.close(ignored);
    waiting_.clear();
    const auto on_closed = events_.on_closed;
    if (on_closed) on_closed(StreamEnd{.why = why});
  }

  static constexpr std::size_t kReadBytes = 1 << 16;
  asio::ip::tcp::socket socket_;
  std::array<char, kReadBytes> buffer_{};
  StreamEvents events_;
  std::string writing_;
  std::string waiting_;
  bool input_ends_ = false;
};

SocketStream::SocketStream(asio::ip::tcp::socket socket)
    : connection_(std::make_shared<Connection>(std::move(socket))) {}
SocketStream::~SocketStream() {
  connection_->abandon();
}
void SocketStream::listen(StreamEvents events) {
  connection_->listen(std::move(events));
}
void SocketStream::write(std::string_view bytes) {
  connection_->write(bytes);
}
std::size_t SocketStream::queued_bytes() const {
  return connection_->queued_bytes();
}
void SocketStream::close_input() {
  connection_->close_input();
}
void SocketStream::close() {
  connection_->close();
}

}  // namespace dstrain::launcher
