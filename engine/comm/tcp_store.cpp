// The store's client. Each call takes an idle connection, or opens one more, so a long get of one
// thread does not hold up another; between calls the connections are kept.
#include "engine/comm/tcp_store.h"

#include <algorithm>
#include <mutex>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "engine/comm/communicator.h"
#include "engine/comm/handshake.h"
#include "engine/comm/socket.h"
#include "engine/comm/store_protocol.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

namespace protocol = store_protocol;
using std::chrono::milliseconds;

constexpr auto kFirstPause = milliseconds(1);
constexpr auto kLongestPause = milliseconds(50);
constexpr auto kTryDeadline = std::chrono::seconds(5);   // one connection and its handshake
constexpr auto kAnswerGrace = std::chrono::seconds(10);  // the server's answer to a request

double seconds(milliseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

struct Connection {
  FileDescriptor socket;
  FrameSeal seals;  ///< requests
  FrameSeal opens;  ///< answers
};

struct Reply {
  protocol::Status status = protocol::Status::kError;
  std::string value;
};

class TcpStore final : public Store {
 public:
  TcpStore(std::string host, std::uint16_t port, std::string token, milliseconds connect_deadline)
      : host_(std::move(host)),
        port_(port),
        token_(std::move(token)),
        connect_deadline_(connect_deadline) {
    keep(open_connection(connect_deadline_));
  }

  void set(std::string_view key, std::string_view value) override {
    check(value.size() <= protocol::kMaxValueBytes, "key \"{}\": a value of {} bytes, at most {}",
          key, value.size(), protocol::kMaxValueBytes);
    (void)request("set", protocol::Request::kSet, key, value, milliseconds{0});
  }

  std::string get(std::string_view key, milliseconds timeout) override {
    std::string argument;
    put_number(argument, std::int64_t{timeout.count()});
    Reply reply = request("get", protocol::Request::kGet, key, argument, timeout);
    if (reply.status == protocol::Status::kTimeout) {
      throw Timeout(fmt::format("key \"{}\" was not set within {:.3g} s (store at {})", key,
                                seconds(timeout), address()));
    }
    return std::move(reply.value);
  }

  std::int64_t add(std::string_view key, std::int64_t amount) override {
    std::string argument;
    put_number(argument, amount);
    const Reply reply = request("add", protocol::Request::kAdd, key, argument, milliseconds{0});
    check(reply.status == protocol::Status::kOk, "add to key \"{}\": {}", key, reply.value);
    return std::stoll(reply.value);
  }

  Column all_to_all(const AllToAll& call, milliseconds timeout) override {
    call.validate();
    check(call.agreed.size() + call.row.size() <= protocol::kMaxValueBytes,
          "all-to-all \"{}\": {} bytes, at most {}", call.key, call.agreed.size() + call.row.size(),
          protocol::kMaxValueBytes);
    Reply reply = request("all-to-all", protocol::Request::kAllToAll, call.key,
                          protocol::argument_of(call, timeout), timeout);
    check(reply.status != protocol::Status::kError, "all-to-all \"{}\": {}", call.key, reply.value);
    if (reply.status == protocol::Status::kOk) {
      return {.entries = std::move(reply.value), .missing = {}};
    }
    Column column;
    for (std::string_view left = reply.value; left.size() >= sizeof(std::int32_t);) {
      column.missing.push_back(take_number<std::int32_t>(left));
    }
    return column;
  }

 private:
  [[nodiscard]] std::string address() const { return fmt::format("{}:{}", host_, port_); }

  Reply request(std::string_view what,
                protocol::Request kind,
                std::string_view key,
                std::string_view argument,
                milliseconds timeout) {
    check(key.size() <= protocol::kMaxKeyBytes, "a key of {} bytes, at most {}", key.size(),
          protocol::kMaxKeyBytes);
    std::string frame;
    put_number(frame, kind);
    put_number(frame, static_cast<std::uint16_t>(key.size()));
    frame.append(key).append(argument);
    try {
      Connection connection = take_or_open();
      const Clock::time_point deadline = Clock::now() + timeout + kAnswerGrace;
      send_all(connection.socket, protocol::sealed_frame(connection.seals, frame), deadline);
      std::string answer = receive_exactly(connection.socket, protocol::kLengthBytes, deadline);
      std::string_view length = answer;
      const auto bytes = take_number<std::uint32_t>(length);
      if (bytes == 0 || bytes > protocol::kMaxFrameBytes) {
        throw std::runtime_error(fmt::format("an answer of {} bytes", bytes));
      }
      answer += receive_exactly(connection.socket, bytes + protocol::kTagBytes, deadline);
      const auto body = protocol::open_frame(connection.opens, answer);
      if (!body) {
        throw std::runtime_error("its answer fails authentication: it was changed on the way");
      }
      keep(std::move(connection));
      return {.status = protocol::Status{static_cast<std::uint8_t>(body->front())},
              .value = std::string(body->substr(1))};
    } catch (const StoreRefused&) {
      throw;
    } catch (const std::runtime_error& failure) {
      throw PeerLost(fmt::format("{} of key \"{}\": lost the store at {}, which rank 0 serves ({})",
                                 what, key, address(), failure.what()));
    }
  }

  Connection take_or_open() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        Connection connection = std::move(idle_.back());
        idle_.pop_back();
        return connection;
      }
    }
    return open_connection(std::min<milliseconds>(connect_deadline_, kAnswerGrace));
  }

  void keep(Connection connection) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(connection));
  }

  // Ranks start in any order, so a refused connection is no reason to give up before the deadline.
  // The deadline is short once the server has been reached: then it is gone, or answers like any
  // request.
  Connection open_connection(milliseconds patience) const {
    const Clock::time_point deadline = Clock::now() + patience;
    milliseconds pause = kFirstPause;
    for (;;) {
      try {
        return try_to_open(std::min(deadline, Clock::now() + kTryDeadline));
      } catch (const StoreRefused&) {
        throw;
      } catch (const std::runtime_error& failure) {
        if (Clock::now() + pause >= deadline) {
          throw Timeout(fmt::format(
              "no store answered at {} within {:.3g} s (last try: {}); rank 0 serves it: has it "
              "started, and are MASTER_ADDR and MASTER_PORT right?",
              address(), seconds(patience), failure.what()));
        }
        std::this_thread::sleep_for(pause);
        pause = std::min(2 * pause, kLongestPause);
      }
    }
  }

  Connection try_to_open(Clock::time_point deadline) const {
    FileDescriptor socket = connect_to(host_, port_, deadline);
    constexpr std::uint32_t kNobody = 0;  // all ranks are alike to the store
    DialingHandshake handshake(protocol::kMagic, token_, protocol::kSubject, kNobody);
    using State = DialingHandshake::State;
    State state = handshake.take(receive_exactly(socket, handshake.wanted(), deadline));
    if (state == State::kVerdict) {
      send_all(socket, handshake.hello(), deadline);
      state = handshake.take(receive_exactly(socket, handshake.wanted(), deadline));
    }
    switch (state) {
      case State::kOtherVersion:
        throw StoreRefused(fmt::format(
            "the store at {} speaks version {} of the protocol and this program version {}: is it "
            "the same build of dstrain on every host?",
            address(), handshake.their_version(), int{protocol::kMagic.back()}));
      case State::kRefused:
        throw StoreRefused(fmt::format(
            "the store at {} refused this rank's token: it belongs to another job, or the token "
            "was not passed on to every rank",
            address()));
      case State::kImpostor:
        throw StoreRefused(
            fmt::format("the program listening at {} does not know this job's token", address()));
      case State::kDone:
        break;
      default:
        throw std::runtime_error("the program listening there is not a dstrain store");
    }
    const WireKeys& keys = handshake.keys();
    return {.socket = std::move(socket),
            .seals = FrameSeal(Sealing::kEncrypted, keys.from_dialer, FrameSeal::End::kSeals),
            .opens = FrameSeal(Sealing::kEncrypted, keys.from_acceptor, FrameSeal::End::kOpens)};
  }

  const std::string host_;
  const std::uint16_t port_;
  const std::string token_;
  const milliseconds connect_deadline_;
  std::mutex mutex_;
  std::vector<Connection> idle_;
};

}  // namespace

std::unique_ptr<Store> make_tcp_store(std::string host,
                                      std::uint16_t port,
                                      std::string token,
                                      milliseconds connect_deadline) {
  return std::make_unique<TcpStore>(std::move(host), port, std::move(token), connect_deadline);
}

}  // namespace dstrain
