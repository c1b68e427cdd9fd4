// The store's server: one thread, one poll over every connection. A connection is first a stranger
// with 56 bytes of buffer and a deadline; once proven it sends one request at a time, and a `get`
// for a key that is not there yet stays here as a wait until the key comes or its time is over.
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/comm/block_signals.h"
#include "engine/comm/socket.h"
#include "engine/comm/store_protocol.h"
#include "engine/comm/tcp_store.h"
#include "kernels/core/check.h"

namespace dstrain {

namespace protocol = store_protocol;

std::string protocol::make_nonce() {
  std::string nonce(kNonceBytes, '\0');
  const ssize_t got = getrandom(nonce.data(), nonce.size(), 0);
  check(got == static_cast<ssize_t>(nonce.size()), "getrandom gave {} bytes", got);
  return nonce;
}

PortInUse::PortInUse(std::string host, std::uint16_t port)
    : std::runtime_error(fmt::format(
          "port {} on {} is in use by another program: choose another port, or 0 for any free one",
          port,
          host.empty() ? "this machine" : host)),
      host_(std::move(host)),
      port_(port) {}

namespace {

constexpr std::size_t kMaxStrangers = 64;
constexpr std::size_t kMaxLoggedStrangers = 256;
constexpr int kAcceptsARound = 256;  // a flood of strangers must not starve the ranks
constexpr auto kProofDeadline = std::chrono::seconds(5);
constexpr auto kAcceptPause = std::chrono::milliseconds(50);  // when descriptors have run out

struct Wait {
  std::string key;
  Clock::time_point deadline;
};

struct Connection {
  Fd socket;
  std::string peer;
  std::string peer_host;
  std::string nonce;
  Clock::time_point proof_deadline;
  bool proven = false;
  bool open = true;
  std::string in;
  std::string out;
  std::optional<Wait> wait;  ///< a get that is not answered yet

  /// How many more bytes may be read now: one message ahead, never more.
  [[nodiscard]] std::size_t wanted() const {
    if (!proven) {
      return protocol::kProofBytes - in.size();
    }
    if (in.size() < sizeof(std::uint32_t)) {
      return sizeof(std::uint32_t) - in.size();
    }
    return sizeof(std::uint32_t) + frame_bytes() - in.size();
  }
  [[nodiscard]] std::size_t frame_bytes() const {
    std::string_view text = in;
    return protocol::take<std::uint32_t>(text);
  }
};

}  // namespace

class TcpStoreServer::Loop {
 public:
  Loop(const std::string& address, std::uint16_t port, std::string token)
      : token_(std::move(token)),
        listener_(listen_on(address, port)),
        port_(port_of(listener_)),
        stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    check(!token_.empty(), "a store needs a token");
    check(stop_.valid(), "eventfd: {}", errno);
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
    std::vector<pollfd> polled;
    for (;;) {
      polled.clear();
      polled.push_back({.fd = stop_.get(), .events = POLLIN, .revents = 0});
      const bool accepting = Clock::now() >= accept_again_;
      polled.push_back({.fd = accepting ? listener_.get() : -1, .events = POLLIN, .revents = 0});
      for (const Connection& connection : connections_) {
        polled.push_back(
            {.fd = connection.socket.get(), .events = interest(connection), .revents = 0});
      }
      if (poll(polled.data(), polled.size(), milliseconds_to_next_deadline()) < 0 &&
          errno != EINTR) {
        spdlog::error("the store's server ends: poll error={}", errno);
        return;
      }
      if (polled[0].revents != 0) {
        return;
      }
      std::size_t index = 2;
      for (Connection& connection : connections_) {
        handle(connection, polled[index++].revents);
      }
      if (polled[1].revents != 0) {
        accept_some();
      }
      pass_deadlines();
      std::erase_if(connections_, [](const Connection& connection) { return !connection.open; });
    }
  }

  // While an answer is owed, nothing is read: one request at a time, and memory stays bounded.
  static short interest(const Connection& connection) {
    if (!connection.out.empty()) {
      return POLLOUT;
    }
    return connection.wait ? POLLRDHUP : POLLIN;
  }

  int milliseconds_to_next_deadline() const {
    Clock::time_point next = Clock::now() + std::chrono::minutes(10);
    for (const Connection& connection : connections_) {
      if (!connection.proven) {
        next = std::min(next, connection.proof_deadline);
      } else if (connection.wait) {
        next = std::min(next, connection.wait->deadline);
      }
    }
    if (accept_again_ > Clock::now()) {
      next = std::min(next, accept_again_);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
    return static_cast<int>(std::max<std::int64_t>(left, 0));
  }

  void accept_some() {
    for (int i = 0; i < kAcceptsARound; ++i) {
      Fd socket = accept_from(listener_);
      if (!socket.valid()) {
        if (errno == EINTR || errno == ECONNABORTED) {
          continue;
        }
        if (errno != EAGAIN && !drop_oldest_stranger("no descriptors left")) {
          accept_again_ = Clock::now() + kAcceptPause;
        }
        return;
      }
      if (strangers() >= kMaxStrangers) {
        drop_oldest_stranger("displaced by newer connections");
      }
      Connection& connection = connections_.emplace_back();
      std::tie(connection.peer, connection.peer_host) = peer_of(socket);
      connection.socket = std::move(socket);
      connection.nonce = protocol::make_nonce();
      connection.proof_deadline = Clock::now() + kProofDeadline;
      connection.out = std::string(protocol::kMagic) + connection.nonce;
      flush(connection);
    }
  }

  std::size_t strangers() const {
    return static_cast<std::size_t>(
        std::count_if(connections_.begin(), connections_.end(),
                      [](const Connection& c) { return c.open && !c.proven; }));
  }

  bool drop_oldest_stranger(std::string_view why) {
    const auto oldest = std::find_if(connections_.begin(), connections_.end(),
                                     [](const Connection& c) { return c.open && !c.proven; });
    if (oldest == connections_.end()) {
      return false;
    }
    drop_stranger(*oldest, why);
    return true;
  }

  // One line for each host and reason; a storm of them is counted, and told at the end.
  void drop_stranger(Connection& connection, std::string_view why) {
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

  void close(Connection& connection) {
    connection.socket = Fd();
    connection.open = false;
  }

  void handle(Connection& connection, short events) {
    if (!connection.open || events == 0) {
      return;
    }
    if (!connection.out.empty()) {
      flush(connection);
    } else if (connection.wait) {
      close(connection);  // the only event a waiting client can cause is its end
    } else {
      read(connection);
    }
  }

  void read(Connection& connection) {
    while (connection.open && connection.out.empty() && !connection.wait) {
      std::array<char, 16384> buffer;
      const ssize_t got = recv(connection.socket.get(), buffer.data(),
                               std::min(buffer.size(), connection.wanted()), 0);
      if (got > 0) {
        connection.in.append(buffer.data(), static_cast<std::size_t>(got));
        advance(connection);
      } else if (got < 0 && errno == EINTR) {
        continue;
      } else if (got < 0 && errno == EAGAIN) {
        return;
      } else if (connection.proven) {
        close(connection);
      } else {
        drop_stranger(connection, "it left without proving the job's token");
      }
    }
  }

  void advance(Connection& connection) {
    if (!connection.proven) {
      judge(connection);
    } else if (connection.in.size() >= sizeof(std::uint32_t)) {
      if (connection.frame_bytes() > protocol::kMaxFrameBytes) {
        spdlog::warn("store closed a connection peer={} reason=\"a request of {} bytes\"",
                     connection.peer, connection.frame_bytes());
        close(connection);
      } else if (connection.wanted() == 0) {
        const std::string frame = connection.in.substr(sizeof(std::uint32_t));
        connection.in.clear();
        if (!answer(connection, frame)) {
          spdlog::warn("store closed a connection peer={} reason=\"a malformed request\"",
                       connection.peer);
          close(connection);
        }
      }
    }
  }

  // The first wrong byte of the magic is enough: nothing is awaited from who speaks HTTP.
  void judge(Connection& connection) {
    const std::string_view in = connection.in;
    const std::size_t seen = std::min(in.size(), protocol::kMagic.size());
    if (in.substr(0, seen) != protocol::kMagic.substr(0, seen)) {
      drop_stranger(connection, "it does not speak this store's protocol");
      return;
    }
    if (in.size() < protocol::kProofBytes) {
      return;
    }
    const std::string_view nonce = in.substr(protocol::kMagic.size(), protocol::kNonceBytes);
    const std::string_view proof = in.substr(protocol::kMagic.size() + protocol::kNonceBytes);
    if (!equal_in_constant_time(proof,
                                protocol::proof_of(token_, "client", connection.nonce, nonce))) {
      connection.out.assign(protocol::kVerdictBytes, '\0');
      flush(connection);
      drop_stranger(connection, "wrong token");
      return;
    }
    connection.out = '\x01' + protocol::proof_of(token_, "server", connection.nonce, nonce);
    connection.proven = true;
    connection.in.clear();
    flush(connection);
  }

  /// False if the request makes no sense.
  bool answer(Connection& connection, std::string_view frame) {
    if (frame.size() < 3) {
      return false;
    }
    const auto request = protocol::Request{protocol::take<std::uint8_t>(frame)};
    const auto key_bytes = protocol::take<std::uint16_t>(frame);
    if (key_bytes > protocol::kMaxKeyBytes || key_bytes > frame.size()) {
      return false;
    }
    std::string key(frame.substr(0, key_bytes));
    frame.remove_prefix(key_bytes);
    switch (request) {
      case protocol::Request::kSet:
        put(key, std::string(frame));
        reply(connection, protocol::Status::kOk, "");
        return true;
      case protocol::Request::kGet: {
        if (frame.size() != sizeof(std::int64_t)) {
          return false;
        }
        const auto timeout = std::clamp<std::int64_t>(protocol::take<std::int64_t>(frame), 0,
                                                      std::int64_t{365} * 86'400'000);
        if (const auto found = values_.find(key); found != values_.end()) {
          reply(connection, protocol::Status::kOk, found->second);
        } else {
          connection.wait = Wait{.key = std::move(key),
                                 .deadline = Clock::now() + std::chrono::milliseconds(timeout)};
        }
        return true;
      }
      case protocol::Request::kAdd:
        if (frame.size() != sizeof(std::int64_t)) {
          return false;
        }
        add(connection, key, protocol::take<std::int64_t>(frame));
        return true;
    }
    return false;
  }

  void put(const std::string& key, std::string value) {
    const std::string& stored = values_.insert_or_assign(key, std::move(value)).first->second;
    for (Connection& waiting : connections_) {
      if (waiting.open && waiting.wait && waiting.wait->key == key) {
        waiting.wait.reset();
        reply(waiting, protocol::Status::kOk, stored);
      }
    }
  }

  void add(Connection& connection, const std::string& key, std::int64_t amount) {
    const auto found = values_.find(key);
    const std::string_view text = found == values_.end() ? "0" : std::string_view(found->second);
    std::int64_t sum = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), sum);
    if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
      reply(connection, protocol::Status::kError, "it holds text, not a number");
      return;
    }
    sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(sum) +
                                    static_cast<std::uint64_t>(amount));
    put(key, std::to_string(sum));
    reply(connection, protocol::Status::kOk, std::to_string(sum));
  }

  void reply(Connection& connection, protocol::Status status, std::string_view value) {
    protocol::append(connection.out, static_cast<std::uint32_t>(1 + value.size()));
    protocol::append(connection.out, status);
    connection.out.append(value);
    flush(connection);
  }

  void flush(Connection& connection) {
    while (!connection.out.empty()) {
      const ssize_t sent =
          send(connection.socket.get(), connection.out.data(), connection.out.size(), MSG_NOSIGNAL);
      if (sent >= 0) {
        connection.out.erase(0, static_cast<std::size_t>(sent));
      } else if (errno == EAGAIN) {
        return;
      } else if (errno != EINTR) {
        close(connection);
        return;
      }
    }
  }

  void pass_deadlines() {
    const Clock::time_point now = Clock::now();
    for (Connection& connection : connections_) {
      if (connection.open && !connection.proven && connection.proof_deadline <= now) {
        drop_stranger(connection, "no proof of the job's token within 5 s");
      } else if (connection.open && connection.wait && connection.wait->deadline <= now) {
        connection.wait.reset();
        reply(connection, protocol::Status::kTimeout, "");
      }
    }
  }

  const std::string token_;
  const Fd listener_;
  const std::uint16_t port_;
  const Fd stop_;
  std::list<Connection> connections_;  // in the order they came
  std::map<std::string, std::string, std::less<>> values_;
  Clock::time_point accept_again_{};
  std::set<std::string> logged_strangers_;
  std::int64_t unlogged_strangers_ = 0;
  std::thread thread_;
};

TcpStoreServer::TcpStoreServer(const std::string& address, std::uint16_t port, std::string token)
    : loop_(std::make_unique<Loop>(address, port, std::move(token))) {}
TcpStoreServer::~TcpStoreServer() = default;
std::uint16_t TcpStoreServer::port() const {
  return loop_->port();
}

}  // namespace dstrain
