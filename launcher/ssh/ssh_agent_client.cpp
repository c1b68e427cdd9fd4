#include "launcher/ssh/ssh_agent_client.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <utility>

#include "launcher/ssh/ssh_encoding.h"

namespace dstrain::launcher {
namespace {

enum Message : char {
  kRequestIdentities = 11,
  kIdentitiesAnswer = 12,
  kSignRequest = 13,
  kSignResponse = 14
};
constexpr std::chrono::seconds kPatience{5};
constexpr std::uint32_t kMaxReply = 1 << 18;  // OpenSSH's own limit

std::string encoded(std::uint32_t number) {
  return {static_cast<char>(number >> 24), static_cast<char>(number >> 16),
          static_cast<char>(number >> 8), static_cast<char>(number)};
}
std::string encoded(std::string_view text) {
  return encoded(static_cast<std::uint32_t>(text.size())) + std::string(text);
}

}  // namespace

/// One connection; request, answer, request, …
class SshAgentClient::Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  using Done = std::function<void(std::string error, std::string reply)>;

  Exchange(asio::io_context& loop, std::string path)
      : path_(std::move(path)), socket_(loop), timer_(loop) {}

  void ask(const std::string& message, Done done) {
    request_ = encoded(std::string_view(message));
    done_ = std::move(done);
    timer_.expires_after(kPatience);
    timer_.async_wait([self = shared_from_this()](const asio::error_code& error) {
      if (!error) self->finish("does not answer");
    });
    if (socket_.is_open()) return write();
    asio::local::stream_protocol::endpoint endpoint;
    try {
      endpoint = asio::local::stream_protocol::endpoint(path_);
    } catch (const std::system_error& error) {  // too long a path
      return asio::post(
          socket_.get_executor(),
          [self = shared_from_this(), why = std::string(error.what())] { self->finish(why); });
    }
    socket_.async_connect(endpoint, [self = shared_from_this()](const asio::error_code& error) {
      if (error) return self->finish(error.message());
      self->write();
    });
  }

  void abandon() {
    done_ = nullptr;
    stop();
  }

 private:
  void write() {
    asio::async_write(socket_, asio::buffer(request_),
                      [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                        if (error) return self->finish(error.message());
                        self->read_size();
                      });
  }

  void read_size() {
    asio::async_read(socket_, asio::buffer(size_),
                     [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                       if (error) return self->finish(error.message());
                       std::string_view bytes(self->size_.data(), self->size_.size());
                       const std::uint32_t size = take_ssh_number(bytes).value_or(0);
                       if (size == 0 || size > kMaxReply)
                         return self->finish("does not speak the protocol");
                       self->reply_.resize(size);
                       self->read_reply();
                     });
  }

  void read_reply() {
    asio::async_read(socket_, asio::buffer(reply_),
                     [self = shared_from_this()](const asio::error_code& error, std::size_t) {
                       if (error) return self->finish(error.message());
                       self->timer_.cancel();
                       if (self->done_) {
                         std::exchange(self->done_, nullptr)({}, std::move(self->reply_));
                       }
                     });
  }

  /// Ends the request. After an error the connection is of no more use.
  void finish(const std::string& error) {
    stop();
    if (done_) std::exchange(done_, nullptr)(error, {});
  }

  void stop() {
    asio::error_code ignored;
    socket_.close(ignored);
    timer_.cancel();
  }

  const std::string path_;
  asio::local::stream_protocol::socket socket_;
  asio::steady_timer timer_;
  std::string request_;
  std::array<char, 4> size_{};
  std::string reply_;
  Done done_;
};

SshAgentClient::SshAgentClient(asio::io_context& loop, std::string socket_path)
    : exchange_(std::make_shared<Exchange>(loop, std::move(socket_path))) {}

SshAgentClient::~SshAgentClient() {
  exchange_->abandon();
}

void SshAgentClient::list_keys(std::function<void(std::string, std::vector<AgentKey>)> done) {
  exchange_->ask({kRequestIdentities},
                 [done = std::move(done)](const std::string& error, const std::string& reply) {
                   if (!error.empty()) return done(error, {});
                   std::string_view rest = reply;
                   if (!rest.starts_with(kIdentitiesAnswer))
                     return done("refuses to list its keys", {});
                   rest.remove_prefix(1);
                   const std::uint32_t count = take_ssh_number(rest).value_or(0);
                   std::vector<AgentKey> keys;
                   while (keys.size() < count && !rest.empty()) {
                     const std::string blob(take_ssh_string(rest));
                     const std::string comment(take_ssh_string(rest));
                     if (!blob.empty()) keys.push_back({blob, comment});
                   }
                   done({}, std::move(keys));
                 });
}

void SshAgentClient::sign(const std::string& key_blob,
                          std::string_view data,
                          std::uint32_t flags,
                          std::function<void(std::string, std::string)> done) {
  const std::string request = std::string{kSignRequest} + encoded(std::string_view(key_blob)) +
                              encoded(data) + encoded(flags);
  exchange_->ask(request,
                 [done = std::move(done)](const std::string& error, const std::string& reply) {
                   if (!error.empty()) return done(error, {});
                   std::string_view rest = reply;
                   if (!rest.starts_with(kSignResponse)) return done("refuses to sign", {});
                   rest.remove_prefix(1);
                   std::string_view signature = take_ssh_string(rest);
                   take_ssh_string(signature);  // the algorithm's name
                   const std::string bytes(take_ssh_string(signature));
                   done(bytes.empty() ? "sent no signature" : "", bytes);
                 });
}

}  // namespace dstrain::launcher
