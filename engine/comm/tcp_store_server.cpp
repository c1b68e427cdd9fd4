// The store's server: one thread, one epoll over every connection, so that a request costs the same
// among ten ranks and ten thousand. A connection begins as a stranger with 76 bytes of buffer and a
// deadline; once proven it sends one request at a time (store_requests.h).
#include <algorithm>
#include <array>
#include <cerrno>
#include <list>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/comm/block_signals.h"
#include "engine/comm/socket.h"
#include "engine/comm/store_connection.h"
#include "engine/comm/store_protocol.h"
#include "engine/comm/store_requests.h"
#include "engine/comm/tcp_store.h"
#include "kernels/core/check.h"

namespace dstrain {

namespace protocol = store_protocol;

namespace {

constexpr std::size_t kMaxLoggedStrangers = 256;
constexpr int kAcceptsARound = 256;  // a flood of strangers must not starve the ranks
constexpr auto kProofDeadline = std::chrono::seconds(5);
constexpr auto kAcceptPause = std::chrono::milliseconds(50);  // when descriptors have run out

}  // namespace

class TcpStoreServer::Loop {
 public:
  Loop(FileDescriptor listener, std::string token, const TcpStoreLimits& limits)
      : token_(std::move(token)),
        max_strangers_(std::clamp<std::size_t>(limits.strangers, 1, raise_descriptor_limit() / 2)),
        listener_(std::move(listener)),
        port_(port_of(listener_)),
        stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        poller_(epoll_create1(EPOLL_CLOEXEC)) {
    check(!token_.empty(), "a store needs a token");
    check(stop_ && poller_, "eventfd or epoll: {}", errno);
    watch(EPOLL_CTL_ADD, stop_, EPOLLIN, &stop_);
    watch(EPOLL_CTL_ADD, listener_, EPOLLIN, &listener_);
    const BlockSignals block;
    thread_ = std::thread([this] { serve(); });
  }

  ~Loop() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof one);
    thread_.join();
    if (unlogged_strangers_ > 0) {
      spdlog::warn("store refused further strangers count={}", unlogged_strangers_);
    }
  }

  [[nodiscard]] std::uint16_t port() const { return port_; }

 private:
  void serve() {
    std::array<epoll_event, 256> events;
    for (;;) {
      const int count = epoll_wait(poller_.get(), events.data(), static_cast<int>(events.size()),
                                   milliseconds_to_next_deadline());
      if (count < 0 && errno != EINTR) {
        spdlog::error("the store's server ends: epoll error={}", errno);
        return;
      }
      for (int i = 0; i < count; ++i) {
        void* const source = events[static_cast<std::size_t>(i)].data.ptr;
        if (source == &stop_) {
          return;
        }
        if (source == &listener_) {
          accept_some();
        } else {
          handle(*static_cast<StoreConnection*>(source));
        }
      }
      pass_deadlines();
      closed_.clear();  // not before: an event of this round may have named one of them
    }
  }

  void watch(int operation,
             const FileDescriptor& socket,
             std::uint32_t events,
             const void* source) {
    epoll_event event{};
    event.events = events;
    event.data.ptr = const_cast<void*>(source);
    check(epoll_ctl(poller_.get(), operation, socket.get(), &event) == 0, "epoll_ctl: {}", errno);
  }

  [[nodiscard]] int milliseconds_to_next_deadline() const {
    Clock::time_point next = Clock::now() + std::chrono::minutes(10);
    if (!strangers_.empty()) {
      next = std::min(next, strangers_.front().proof_deadline);
    }
    next = std::min(next, requests_.next_deadline());
    if (accept_again_) {
      next = std::min(next, *accept_again_);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
    return static_cast<int>(std::max<std::int64_t>(left, 0));
  }

  void accept_some() {
    for (int i = 0; i < kAcceptsARound; ++i) {
      FileDescriptor socket = accept_from(listener_);
      if (!socket) {
        if (errno == EINTR || errno == ECONNABORTED) {
          continue;
        }
        if (errno != EAGAIN && !drop_oldest_stranger("no descriptors left")) {
          watch(EPOLL_CTL_MOD, listener_, 0, &listener_);
          accept_again_ = Clock::now() + kAcceptPause;
        }
        return;
      }
      if (strangers_.size() >= max_strangers_) {
        drop_oldest_stranger("displaced by newer connections");
      }
      StoreConnection& connection = strangers_.emplace_back();
      connection.place = std::prev(strangers_.end());
      std::tie(connection.peer, connection.peer_host) = peer_of(socket);
      connection.socket = std::move(socket);
      connection.proof_deadline = Clock::now() + kProofDeadline;
      connection.out = connection.handshake.greeting();
      watch(EPOLL_CTL_ADD, connection.socket, EPOLLIN, &connection);
      flush(connection);
    }
  }

  bool drop_oldest_stranger(std::string_view why) {
    if (strangers_.empty()) {
      return false;
    }
    drop_stranger(strangers_.front(), why);
    return true;
  }

  // Logs one line for each host and reason; further ones are counted, and the count is logged at
  // the end.
  void drop_stranger(StoreConnection& connection, std::string_view why) {
    const bool first =
        logged_strangers_.size() < kMaxLoggedStrangers &&
        logged_strangers_.insert(fmt::format("{} {}", connection.peer_host, why)).second;
    if (first) {
      spdlog::warn("store refused a stranger peer={} reason=\"{}\"", connection.peer, why);
    } else {
      ++unlogged_strangers_;
    }
    close(connection);
  }

  /// The connection stays in closed_ until the round is over.
  void close(StoreConnection& connection) {
    if (!connection.open) {
      return;
    }
    requests_.forget(connection);
    // Closing is not enough: a process forked meanwhile may hold the same connection, which then
    // stays in epoll's list.
    (void)epoll_ctl(poller_.get(), EPOLL_CTL_DEL, connection.socket.get(), nullptr);
    connection.socket = FileDescriptor();
    connection.open = false;
    closed_.splice(closed_.end(), connection.proven ? members_ : strangers_, connection.place);
  }

  void handle(StoreConnection& connection) {
    if (!connection.open) {
      return;
    }
    if (!connection.out.empty()) {
      flush(connection);
    } else if (connection.wait) {
      close(connection);  // it owes nothing but its end
    } else {
      read(connection);
    }
  }

  /// Reads as much as one message needs; epoll reports it if there is more.
  void read(StoreConnection& connection) {
    std::array<char, 16384> buffer;
    const ssize_t got = recv(connection.socket.get(), buffer.data(),
                             std::min(buffer.size(), connection.wanted()), 0);
    if (got > 0) {
      const std::string_view bytes(buffer.data(), static_cast<std::size_t>(got));
      connection.proven ? advance(connection, bytes) : judge(connection, bytes);
    } else if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
      return;
    } else if (connection.proven) {
      close(connection);
    } else {
      drop_stranger(connection, "it left without proving the job's token");
    }
  }

  void advance(StoreConnection& connection, std::string_view bytes) {
    connection.in.append(bytes);
    if (connection.in.size() < protocol::kLengthBytes) {
      return;
    }
    if (connection.request_bytes() > protocol::kMaxFrameBytes) {
      refuse_member(connection, fmt::format("a request of {} bytes", connection.request_bytes()));
    } else if (connection.in.size() > connection.whole_bytes()) {
      refuse_member(connection, "more than one request at a time");
    } else if (connection.in.size() == connection.whole_bytes()) {
      std::string frame = std::exchange(connection.in, {});
      const auto request = protocol::open_frame(connection.opens, frame);
      if (!request) {
        refuse_member(connection, "a request that fails authentication: it was changed on the way");
      } else if (!requests_.answer(connection, *request)) {
        refuse_member(connection, "a malformed request");
      }
    }
  }

  void refuse_member(StoreConnection& connection, std::string_view why) {
    spdlog::warn("store closed a connection peer={} reason=\"{}\"", connection.peer, why);
    close(connection);
  }

  // The first wrong byte of the magic is enough: there is no waiting for more from a client that
  // speaks HTTP.
  void judge(StoreConnection& connection, std::string_view bytes) {
    if (!connection.handshake.take(bytes)) {
      drop_stranger(connection, "it does not speak this store's protocol");
      return;
    }
    if (connection.handshake.wanted() > 0) {
      return;
    }
    const std::optional<WireKeys> keys = connection.handshake.judge(token_, protocol::kSubject);
    if (!keys) {
      connection.out = AcceptingHandshake::refusal();
      flush(connection);
      drop_stranger(connection, "wrong token");
      return;
    }
    connection.opens = FrameSeal(Sealing::kEncrypted, keys->from_dialer, FrameSeal::End::kOpens);
    connection.seals = FrameSeal(Sealing::kEncrypted, keys->from_acceptor, FrameSeal::End::kSeals);
    connection.out = AcceptingHandshake::verdict(*keys);
    connection.proven = true;
    members_.splice(members_.end(), strangers_, connection.place);
    flush(connection);
  }

  void reply(StoreConnection& connection, protocol::Status status, std::string_view value) {
    std::string body;
    put_number(body, status);
    connection.out.append(protocol::sealed_frame(connection.seals, body.append(value)));
    flush(connection);
  }

  // While an answer is owed, nothing is read: one request at a time, and memory stays bounded.
  void flush(StoreConnection& connection) {
    while (!connection.out.empty()) {
      const ssize_t sent =
          send(connection.socket.get(), connection.out.data(), connection.out.size(), MSG_NOSIGNAL);
      if (sent >= 0) {
        connection.out.erase(0, static_cast<std::size_t>(sent));
      } else if (errno == EAGAIN) {
        break;
      } else if (errno != EINTR) {
        close(connection);
        return;
      }
    }
    if (connection.sending == connection.out.empty()) {
      connection.sending = !connection.sending;
      watch(EPOLL_CTL_MOD, connection.socket, connection.sending ? EPOLLOUT : EPOLLIN, &connection);
    }
  }

  void pass_deadlines() {
    const Clock::time_point now = Clock::now();
    while (!strangers_.empty() && strangers_.front().proof_deadline <= now) {
      drop_stranger(strangers_.front(), "no proof of the job's token within 5 s");
    }
    requests_.pass_deadlines(now);
    if (accept_again_ && *accept_again_ <= now) {
      accept_again_.reset();
      watch(EPOLL_CTL_MOD, listener_, EPOLLIN, &listener_);
    }
  }

  const std::string token_;
  const std::size_t max_strangers_;
  const FileDescriptor listener_;
  const std::uint16_t port_;
  const FileDescriptor stop_;
  const FileDescriptor poller_;
  std::list<StoreConnection>
      strangers_;  // in the order they came, which is that of their deadlines
  std::list<StoreConnection> members_;
  std::list<StoreConnection> closed_;
  StoreRequests requests_{
      [this](StoreClient& client, protocol::Status status, std::string_view value) {
        reply(static_cast<StoreConnection&>(client), status, value);
      }};
  std::optional<Clock::time_point> accept_again_;
  std::set<std::string> logged_strangers_;
  std::int64_t unlogged_strangers_ = 0;
  std::thread thread_;
};

TcpStoreServer::TcpStoreServer(const std::string& address,
                               std::uint16_t port,
                               std::string token,
                               const TcpStoreLimits& limits)
    : TcpStoreServer(listen_on(address, port), std::move(token), limits) {}
TcpStoreServer::TcpStoreServer(FileDescriptor listener,
                               std::string token,
                               const TcpStoreLimits& limits)
    : loop_(std::make_unique<Loop>(std::move(listener), std::move(token), limits)) {}
TcpStoreServer::~TcpStoreServer() = default;
std::uint16_t TcpStoreServer::port() const {
  return loop_->port();
}

}  // namespace dstrain
