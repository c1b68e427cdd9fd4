// The store's server: one thread, one epoll over every connection, so that a request costs the same
// among ten ranks and ten thousand. A connection is first a stranger with 56 bytes of buffer and a
// deadline; once proven it sends one request at a time, and a `get` for a key that is not there yet
// stays here as a wait until the key comes or its time is over.
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/comm/block_signals.h"
#include "engine/comm/row_exchange.h"
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

constexpr std::size_t kMaxLoggedStrangers = 256;
constexpr int kAcceptsARound = 256;  // a flood of strangers must not starve the ranks
constexpr auto kProofDeadline = std::chrono::seconds(5);
constexpr auto kAcceptPause = std::chrono::milliseconds(50);  // when descriptors have run out

struct Connection;
using Waits = std::multimap<Clock::time_point, Connection*>;

/// A get or an all-to-all that is not answered yet.
struct Wait {
  std::string key;
  Waits::iterator deadline;
  int rank = kNoRank;  ///< in the all-to-all; of a get none

  static constexpr int kNoRank = -1;
};

/// An all-to-all that is not complete: its rows, and who waits for a column, by rank.
struct Gathering {
  RowExchange rows;
  std::vector<Connection*> waiting;
};

struct Connection {
  Fd socket;
  std::string peer;
  std::string peer_host;
  std::string nonce;
  Clock::time_point proof_deadline;
  bool proven = false;
  bool open = true;
  bool sending = false;  ///< epoll watches for room to send, and for nothing else
  std::string in;
  std::string out;
  std::optional<Wait> wait;
  std::list<Connection>::iterator place;  ///< in the list of its kind

  /// How many more bytes may be read now. A client speaks when it has been answered, never before.
  [[nodiscard]] std::size_t wanted() const {
    if (!proven) {
      return protocol::kProofBytes - in.size();
    }
    constexpr std::size_t kUsualFrame = 4096;
    return in.size() < sizeof(std::uint32_t) ? kUsualFrame
                                             : sizeof(std::uint32_t) + frame_bytes() - in.size();
  }
  [[nodiscard]] std::size_t frame_bytes() const {
    std::string_view text = in;
    return protocol::take<std::uint32_t>(text);
  }
};

/// A store of thousands of ranks needs a descriptor for each; the usual limit is 1024 until a
/// program asks for more. Returns what this process may open.
std::size_t raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return 1024;
  }
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
  (void)getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

}  // namespace

class TcpStoreServer::Loop {
 public:
  Loop(const std::string& address,
       std::uint16_t port,
       std::string token,
       const TcpStoreLimits& limits)
      : token_(std::move(token)),
        max_strangers_(std::clamp<std::size_t>(limits.strangers, 1, raise_descriptor_limit() / 2)),
        listener_(listen_on(address, port)),
        port_(port_of(listener_)),
        stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        poller_(epoll_create1(EPOLL_CLOEXEC)) {
    check(!token_.empty(), "a store needs a token");
    check(stop_.valid() && poller_.valid(), "eventfd or epoll: {}", errno);
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
          handle(*static_cast<Connection*>(source));
        }
      }
      pass_deadlines();
      closed_.clear();  // not before: an event of this round may have named one of them
    }
  }

  void watch(int operation, const Fd& socket, std::uint32_t events, const void* source) {
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
    if (!waits_.empty()) {
      next = std::min(next, waits_.begin()->first);
    }
    if (accept_again_) {
      next = std::min(next, *accept_again_);
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
          watch(EPOLL_CTL_MOD, listener_, 0, &listener_);
          accept_again_ = Clock::now() + kAcceptPause;
        }
        return;
      }
      if (strangers_.size() >= max_strangers_) {
        drop_oldest_stranger("displaced by newer connections");
      }
      Connection& connection = strangers_.emplace_back();
      connection.place = std::prev(strangers_.end());
      std::tie(connection.peer, connection.peer_host) = peer_of(socket);
      connection.socket = std::move(socket);
      connection.nonce = protocol::make_nonce();
      connection.proof_deadline = Clock::now() + kProofDeadline;
      connection.out = std::string(protocol::kMagic) + connection.nonce;
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

  /// It stays in closed_ until the round is over.
  void close(Connection& connection) {
    if (!connection.open) {
      return;
    }
    end_wait(connection);
    // Closing is not enough: a process forked meanwhile may hold the same connection, which then
    // goes on in epoll's list.
    (void)epoll_ctl(poller_.get(), EPOLL_CTL_DEL, connection.socket.get(), nullptr);
    connection.socket = Fd();
    connection.open = false;
    closed_.splice(closed_.end(), connection.proven ? members_ : strangers_, connection.place);
  }

  void handle(Connection& connection) {
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

  /// As much as one message needs; epoll tells if there is more.
  void read(Connection& connection) {
    std::array<char, 16384> buffer;
    const ssize_t got = recv(connection.socket.get(), buffer.data(),
                             std::min(buffer.size(), connection.wanted()), 0);
    if (got > 0) {
      connection.in.append(buffer.data(), static_cast<std::size_t>(got));
      advance(connection);
    } else if (got < 0 && (errno == EINTR || errno == EAGAIN)) {
      return;
    } else if (connection.proven) {
      close(connection);
    } else {
      drop_stranger(connection, "it left without proving the job's token");
    }
  }

  void advance(Connection& connection) {
    if (!connection.proven) {
      judge(connection);
      return;
    }
    if (connection.in.size() < sizeof(std::uint32_t)) {
      return;
    }
    const std::size_t bytes = connection.frame_bytes();
    if (bytes > protocol::kMaxFrameBytes) {
      refuse_member(connection, fmt::format("a request of {} bytes", bytes));
    } else if (connection.in.size() > sizeof(std::uint32_t) + bytes) {
      refuse_member(connection, "more than one request at a time");
    } else if (connection.in.size() == sizeof(std::uint32_t) + bytes) {
      const std::string frame = connection.in.substr(sizeof(std::uint32_t));
      connection.in.clear();
      if (!answer(connection, frame)) {
        refuse_member(connection, "a malformed request");
      }
    }
  }

  void refuse_member(Connection& connection, std::string_view why) {
    spdlog::warn("store closed a connection peer={} reason=\"{}\"", connection.peer, why);
    close(connection);
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
    members_.splice(members_.end(), strangers_, connection.place);
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
        const auto timeout = protocol::take<std::int64_t>(frame);
        if (const auto found = values_.find(key); found != values_.end()) {
          reply(connection, protocol::Status::kOk, found->second);
        } else {
          waiting_for_[key].push_back(&connection);
          connection.wait = Wait{.key = std::move(key), .deadline = wait(connection, timeout)};
        }
        return true;
      }
      case protocol::Request::kAdd:
        if (frame.size() != sizeof(std::int64_t)) {
          return false;
        }
        add(connection, key, protocol::take<std::int64_t>(frame));
        return true;
      case protocol::Request::kAllToAll:
        return take_row(connection, key, frame);
    }
    return false;
  }

  Waits::iterator wait(Connection& connection, std::int64_t milliseconds) {
    constexpr std::int64_t kYear = std::int64_t{365} * 86'400'000;
    const std::chrono::milliseconds timeout(std::clamp<std::int64_t>(milliseconds, 0, kYear));
    return waits_.emplace(Clock::now() + timeout, &connection);
  }

  /// False if the request makes no sense.
  bool take_row(Connection& connection, const std::string& key, std::string_view argument) {
    const auto request = protocol::parse_all_to_all(key, argument);
    if (!request) {
      return false;
    }
    const AllToAll& call = request->call;
    auto found = gatherings_.find(key);
    if (found == gatherings_.end()) {
      found = gatherings_
                  .emplace(key, Gathering{.rows = RowExchange(call),
                                          .waiting = std::vector<Connection*>(
                                              static_cast<std::size_t>(call.size), nullptr)})
                  .first;
    }
    Gathering& gathering = found->second;
    gathering.rows.bring(call);
    if (!gathering.rows.failure().empty()) {
      reply(connection, protocol::Status::kError, gathering.rows.failure());
      answer_all(gathering);
      return true;
    }
    gathering.waiting[static_cast<std::size_t>(call.rank)] = &connection;
    connection.wait =
        Wait{.key = key, .deadline = wait(connection, request->timeout_ms), .rank = call.rank};
    if (gathering.rows.complete()) {
      answer_all(gathering);
      gatherings_.erase(found);
    }
    return true;
  }

  /// Who waits gets a column, or hears why there is none.
  void answer_all(Gathering& gathering) {
    const std::string failure = gathering.rows.failure();
    for (std::size_t rank = 0; rank < gathering.waiting.size(); ++rank) {
      Connection* const connection = gathering.waiting[rank];
      if (connection == nullptr) {
        continue;
      }
      end_wait(*connection);
      if (failure.empty()) {
        reply(*connection, protocol::Status::kOk, gathering.rows.column(static_cast<int>(rank)));
      } else {
        reply(*connection, protocol::Status::kError, failure);
      }
    }
  }

  void put(const std::string& key, std::string value) {
    const std::string& stored = values_.insert_or_assign(key, std::move(value)).first->second;
    auto waiting = waiting_for_.extract(key);
    if (waiting.empty()) {
      return;
    }
    for (Connection* const connection : waiting.mapped()) {
      waits_.erase(connection->wait->deadline);
      connection->wait.reset();
      reply(*connection, protocol::Status::kOk, stored);
    }
  }

  /// If it has one.
  void end_wait(Connection& connection) {
    if (!connection.wait) {
      return;
    }
    if (const int rank = connection.wait->rank; rank != Wait::kNoRank) {
      gatherings_.at(connection.wait->key).waiting[static_cast<std::size_t>(rank)] = nullptr;
    } else {
      const auto waiting = waiting_for_.find(connection.wait->key);
      std::erase(waiting->second, &connection);
      if (waiting->second.empty()) {
        waiting_for_.erase(waiting);
      }
    }
    waits_.erase(connection.wait->deadline);
    connection.wait.reset();
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

  // While an answer is owed, nothing is read: one request at a time, and memory stays bounded.
  void flush(Connection& connection) {
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
    while (!waits_.empty() && waits_.begin()->first <= now) {
      Connection& connection = *waits_.begin()->second;
      std::string missing;
      if (connection.wait->rank != Wait::kNoRank) {
        for (const int rank : gatherings_.at(connection.wait->key).rows.missing()) {
          protocol::append(missing, std::int32_t{rank});
        }
      }
      end_wait(connection);
      reply(connection, protocol::Status::kTimeout, missing);
    }
    if (accept_again_ && *accept_again_ <= now) {
      accept_again_.reset();
      watch(EPOLL_CTL_MOD, listener_, EPOLLIN, &listener_);
    }
  }

  const std::string token_;
  const std::size_t max_strangers_;
  const Fd listener_;
  const std::uint16_t port_;
  const Fd stop_;
  const Fd poller_;
  std::list<Connection> strangers_;  // in the order they came, which is that of their deadlines
  std::list<Connection> members_;
  std::list<Connection> closed_;
  std::unordered_map<std::string, std::string> values_;
  std::unordered_map<std::string, std::vector<Connection*>> waiting_for_;  // by key
  std::unordered_map<std::string, Gathering> gatherings_;                  // by key
  Waits waits_;
  std::optional<Clock::time_point> accept_again_;
  std::set<std::string> logged_strangers_;
  std::int64_t unlogged_strangers_ = 0;
  std::thread thread_;
};

TcpStoreServer::TcpStoreServer(const std::string& address,
                               std::uint16_t port,
                               std::string token,
                               const TcpStoreLimits& limits)
    : loop_(std::make_unique<Loop>(address, port, std::move(token), limits)) {}
TcpStoreServer::~TcpStoreServer() = default;
std::uint16_t TcpStoreServer::port() const {
  return loop_->port();
}

}  // namespace dstrain
