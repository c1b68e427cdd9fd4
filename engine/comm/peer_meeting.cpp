#include "engine/comm/peer_meeting.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>
#include <system_error>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <poll.h>
#include <spdlog/spdlog.h>

#include "engine/comm/communicator.h"
#include "engine/comm/handshake.h"
#include "kernels/core/check.h"

namespace dstrain {
namespace {

constexpr std::string_view kMagic = "dslink \x01";  // the last byte is the version
constexpr auto kProofDeadline = std::chrono::seconds(5);
constexpr auto kPause = std::chrono::milliseconds(10);  // between two tries to connect
constexpr std::size_t kMostStrangers = 256;             // or two for each member
constexpr std::size_t kNameBytes = 16;

/// The message from one member to each other member. For N ranks the store carries N² of them.
struct Whereabouts {
  HostIdentity host;
  std::array<char, kNameBytes> unix_name{};
  sockaddr_in6 address{};  ///< or a sockaddr_in, which is shorter
};
static_assert(sizeof(sockaddr_in) <= sizeof(sockaddr_in6));
static_assert(sizeof(Whereabouts) == 8 + kNameBytes + sizeof(sockaddr_in6) &&
              std::is_trivially_copyable_v<Whereabouts>);

enum class Path : std::uint8_t { kUnix, kTcp };

/// A connection whose other end has not yet proven which member it is.
struct Stranger {
  FileDescriptor socket;
  Path path = Path::kTcp;
  AcceptingHandshake handshake{kMagic};
  Clock::time_point deadline;
};

/// A member of lower rank that this one connects to.
struct Dial {
  int peer = 0;
  FileDescriptor socket;  ///< not valid between two tries
  bool connected = false;
  std::optional<DialingHandshake> handshake;
  Clock::time_point next_try;
  std::string reason = "no answer";  ///< of the last failure
};

std::string reason(int error) {
  return std::generic_category().message(error);
}

class Meeting {
 public:
  Meeting(const PeerGroup& group, const WireOptions& options)
      : group_(group), options_(options), met_(group.members.size()) {
    check(!options.secret.empty(), "group \"{}\": no secret of the job", group.name);
  }

  std::vector<MetPeer> run(Store& store, std::chrono::milliseconds timeout) {
    const Clock::time_point deadline = Clock::now() + timeout;
    listen();
    exchange(store, timeout);
    begin();
    while (missing_ > 0) {
      if (Clock::now() >= deadline) {
        fail(timeout);
      }
      wait(deadline);
      dial_again();
      const Clock::time_point now = Clock::now();
      while (!strangers_.empty() && strangers_.front().deadline <= now) {
        turn_away(strangers_.begin(), "no proof of the job's secret within 5 s");
      }
    }
    if (turned_away_ > 1) {
      spdlog::warn("group \"{}\" turned strangers away count={}", group_.name, turned_away_);
    }
    return std::move(met_);
  }

 private:
  void listen() {
    mine_.host =
        options_.on_one_host == HostPath::kTcp ? HostIdentity{} : host_identity(options_.host);
    const std::string name = make_nonce(kNameBytes);
    std::copy(name.begin(), name.end(), mine_.unix_name.begin());
    if (mine_.host.shares_with(mine_.host)) {
      unix_listener_ = listen_on_abstract(abstract_name(mine_));
    }
    tcp_listener_ = listen_on(options_.interface_address, 0);
    const sockaddr_storage address = address_of(tcp_listener_);
    std::memcpy(&mine_.address, &address, sizeof mine_.address);
  }

  static std::string abstract_name(const Whereabouts& of) {
    std::string name = "dstrain-";
    for (const char byte : of.unix_name) {
      name += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    }
    return name;
  }

  void exchange(Store& store, std::chrono::milliseconds timeout) {
    const std::vector<Whereabouts> row(group_.members.size(), mine_);
    const std::string agreed =
        fmt::format("members {}, network.security \"{}\"", fmt::join(group_.members, ","),
                    name_of(options_.security));
    const Column theirs = store.all_to_all(
        {.key = fmt::format("group/{}", group_.name),
         .rank = group_.rank,
         .size = group_.size(),
         .agreed = agreed,
         .row = {reinterpret_cast<const char*>(row.data()), row.size() * sizeof(Whereabouts)}},
        timeout);
    if (!theirs.missing.empty()) {
      std::vector<int> missing;
      for (const int member : theirs.missing) {
        missing.push_back(world_rank(member));
      }
      throw Timeout(fmt::format(
          "forming group \"{}\": rank(s) {} of the job did not join within {:.3g} s", group_.name,
          fmt::join(missing, ", "), std::chrono::duration<double>(timeout).count()));
    }
    check(theirs.entries.size() == row.size() * sizeof(Whereabouts),
          "group \"{}\": {} bytes of addresses for {} members", group_.name, theirs.entries.size(),
          group_.size());
    theirs_.resize(row.size());
    std::memcpy(static_cast<void*>(theirs_.data()), theirs.entries.data(), theirs.entries.size());
    for (std::size_t member = 0; member < theirs_.size(); ++member) {
      met_[member].host = theirs_[member].host;
    }
  }

  void begin() {
    missing_ = group_.size() - 1;
    bool by_tcp = false;
    bool by_unix = false;
    for (int peer = 0; peer < group_.size(); ++peer) {
      if (peer < group_.rank) {
        dials_.push_back({.peer = peer});
      } else if (peer > group_.rank) {
        (path_to(peer) == Path::kTcp ? by_tcp : by_unix) = true;
      }
    }
    tcp_listener_ = by_tcp ? std::move(tcp_listener_) : FileDescriptor();
    unix_listener_ = by_unix ? std::move(unix_listener_) : FileDescriptor();
    dial_again();
  }

  [[nodiscard]] int world_rank(int peer) const {
    return group_.members[static_cast<std::size_t>(peer)];
  }
  [[nodiscard]] Path path_to(int peer) const {
    return mine_.host.shares_with(theirs_[static_cast<std::size_t>(peer)].host) ? Path::kUnix
                                                                                : Path::kTcp;
  }

  [[nodiscard]] std::string subject(int dialer, int acceptor, Path path) const {
    return fmt::format("dstrain link, rank {} to rank {}, {}, {}, group {}", world_rank(dialer),
                       world_rank(acceptor), path == Path::kTcp ? "tcp" : "unix",
                       name_of(options_.security), group_.name);
  }

  /// Waits until something arrives, or is due.
  void wait(Clock::time_point deadline) {
    std::vector<pollfd> entries;
    const auto watch = [&](const FileDescriptor& socket, short events) {
      entries.push_back({.fd = socket.get(), .events = events, .revents = 0});
    };
    watch(tcp_listener_, POLLIN);  // a descriptor of -1 is left out
    watch(unix_listener_, POLLIN);
    for (const Dial& dial : dials_) {
      watch(dial.socket, dial.connected ? POLLIN : POLLOUT);
      deadline = dial.socket ? deadline : std::min(deadline, dial.next_try);
    }
    for (const Stranger& stranger : strangers_) {
      watch(stranger.socket, POLLIN);
    }
    if (!strangers_.empty()) {
      deadline = std::min(deadline, strangers_.front().deadline);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (poll(entries.data(), entries.size(),
             static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000))) <= 0) {
      return;
    }
    auto entry = entries.begin() + 2;
    for (auto dial = dials_.begin(); dial != dials_.end(); ++entry) {
      const auto next = std::next(dial);
      if (entry->revents != 0 && hear(*dial)) {
        dials_.erase(dial);
      }
      dial = next;
    }
    for (auto stranger = strangers_.begin(); stranger != strangers_.end(); ++entry) {
      const auto next = std::next(stranger);
      if (entry->revents != 0) {
        hear(stranger);
      }
      stranger = next;
    }
    accept_some(tcp_listener_, Path::kTcp);
    accept_some(unix_listener_, Path::kUnix);
  }

  void dial_again() {
    const Clock::time_point now = Clock::now();
    for (Dial& dial : dials_) {
      if (dial.socket || dial.next_try > now) {
        continue;
      }
      const Whereabouts& there = theirs_[static_cast<std::size_t>(dial.peer)];
      const Path path = path_to(dial.peer);
      if (path == Path::kUnix) {
        dial.socket = connect_to_abstract(abstract_name(there));
      } else {
        sockaddr_storage address{};
        std::memcpy(&address, &there.address, sizeof there.address);
        dial.socket = start_connecting(address);
      }
      if (!dial.socket) {
        fall_back(dial, errno);
        continue;
      }
      dial.connected = false;
      dial.handshake.emplace(kMagic, options_.secret, subject(group_.rank, dial.peer, path),
                             static_cast<std::uint32_t>(world_rank(group_.rank)));
    }
  }

  // The member listens until its group has formed, which needs this rank: where nobody listens any
  // more, the process is gone. Everything else may pass: a flood of strangers, a route that comes
  // up.
  void fall_back(Dial& dial, int error) {
    if (error == ECONNREFUSED) {
      throw PeerLost(fmt::format("{}: {}", cannot_connect_to(dial.peer), reason(error)));
    }
    fall_back(dial, reason(error));
  }
  void fall_back(Dial& dial, std::string why) {
    dial.socket = FileDescriptor();
    dial.next_try = Clock::now() + kPause;
    dial.reason = std::move(why);
  }

  /// Returns true once the other end has proven to be the expected member.
  bool hear(Dial& dial) {
    if (!dial.connected) {
      if (const int error = error_of(dial.socket); error != 0) {
        fall_back(dial, error);
        return false;
      }
      dial.connected = true;
      if (path_to(dial.peer) == Path::kUnix && !is_of_this_user(dial.socket)) {
        fall_back(dial, "another user's process listens there");
      }
      return false;
    }
    using State = DialingHandshake::State;
    std::array<char, std::max(kGreetingBytes, kVerdictBytes)> bytes;
    const ssize_t got = recv(dial.socket.get(), bytes.data(), dial.handshake->wanted(), 0);
    if (got <= 0) {
      if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        fall_back(dial, got == 0 ? "it closed the connection" : reason(errno));
      }
      return false;
    }
    const std::string_view text(bytes.data(), static_cast<std::size_t>(got));
    const bool greeted = dial.handshake->wanted() == text.size();
    const State state = dial.handshake->take(text);
    if (state == State::kVerdict && greeted) {
      say(dial.socket, dial.handshake->hello());
    } else if (state == State::kDone) {
      const WireKeys& keys = dial.handshake->keys();
      keep(dial.peer, path_to(dial.peer), std::move(dial.socket), keys.from_dialer,
           keys.from_acceptor);
      return true;
    } else if (state == State::kOtherVersion) {
      throw PeerLost(fmt::format(
          "{}: it speaks version {} of the protocol and this program version "
          "{}: is it the same build of dstrain on every host?",
          cannot_connect_to(dial.peer), dial.handshake->their_version(), int{kMagic.back()}));
    } else if (state != State::kGreeting && state != State::kVerdict) {
      fall_back(dial, "the program answering there does not know this job's secret");
    }
    return false;
  }

  void accept_some(const FileDescriptor& listener, Path path) {
    constexpr int kAcceptsARound = 64;  // a flood of strangers must not starve the members
    for (int i = 0; i < kAcceptsARound && listener; ++i) {
      FileDescriptor socket = accept_from(listener);
      if (!socket) {
        if (errno == EINTR || errno == ECONNABORTED) {
          continue;
        }
        if (errno != EAGAIN) {
          if (strangers_.empty()) {
            throw std::runtime_error(fmt::format(
                "forming group \"{}\": cannot accept connections: {}", group_.name, reason(errno)));
          }
          turn_away(strangers_.begin(), "no descriptors left");
        }
        return;
      }
      if (strangers_.size() >= std::max(kMostStrangers, 2 * group_.members.size())) {
        turn_away(strangers_.begin(), "displaced by newer connections");
      }
      Stranger& stranger = strangers_.emplace_back();
      stranger.socket = std::move(socket);
      stranger.path = path;
      stranger.deadline = Clock::now() + kProofDeadline;
      if (path == Path::kUnix && !is_of_this_user(stranger.socket)) {
        turn_away(std::prev(strangers_.end()), "another user's process");
      } else {
        say(stranger.socket, stranger.handshake.greeting());
      }
    }
  }

  void hear(std::list<Stranger>::iterator stranger) {
    AcceptingHandshake& handshake = stranger->handshake;
    std::array<char, kHelloBytes> bytes;
    const ssize_t got = recv(stranger->socket.get(), bytes.data(), handshake.wanted(), 0);
    if (got <= 0) {
      if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        turn_away(stranger, "it left without proving the job's secret");
      }
      return;
    }
    if (!handshake.take({bytes.data(), static_cast<std::size_t>(got)})) {
      turn_away(stranger, "it does not speak this protocol");
      return;
    }
    if (handshake.wanted() > 0) {
      return;
    }
    const auto member = std::find(group_.members.begin() + group_.rank + 1, group_.members.end(),
                                  static_cast<int>(handshake.caller()));
    const int peer = static_cast<int>(member - group_.members.begin());
    std::optional<WireKeys> keys;
    if (member != group_.members.end() && stranger->path == path_to(peer)) {
      keys = handshake.judge(options_.secret, subject(peer, group_.rank, stranger->path));
    }
    if (!keys) {
      say(stranger->socket, AcceptingHandshake::refusal());
      turn_away(stranger, "wrong secret");
      return;
    }
    say(stranger->socket, AcceptingHandshake::verdict(*keys));
    keep(peer, stranger->path, std::move(stranger->socket), keys->from_acceptor, keys->from_dialer);
    strangers_.erase(stranger);
  }

  /// Sends a few bytes, for which a new connection has room. If it has not, the other end closes or
  /// waits until it may try again.
  static void say(const FileDescriptor& socket, std::string_view text) {
    [[maybe_unused]] const ssize_t sent =
        send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }

  void keep(int peer,
            Path path,
            FileDescriptor socket,
            const WireKey& send_key,
            const WireKey& receive_key) {
    prepare_for_bulk(socket);
    MetPeer& met = met_[static_cast<std::size_t>(peer)];
    missing_ -= met.socket ? 0 : 1;  // or it has come again, having lost the first answer
    met.socket = std::move(socket);
    met.on_this_host = path == Path::kUnix;
    const Sealing sealing = sealing_of(path);
    met.seals = FrameSeal(sealing, send_key, FrameSeal::End::kSeals);
    met.opens = FrameSeal(sealing, receive_key, FrameSeal::End::kOpens);
  }

  [[nodiscard]] Sealing sealing_of(Path path) const {
    if (path == Path::kUnix || options_.security == WireSecurity::kTrusted) {
      return Sealing::kNone;
    }
    return options_.security == WireSecurity::kEncrypted ? Sealing::kEncrypted
                                                         : Sealing::kAuthenticated;
  }

  void turn_away(std::list<Stranger>::iterator stranger, std::string_view why) {
    if (++turned_away_ == 1) {
      spdlog::warn("group \"{}\" turned a stranger away peer={} reason=\"{}\"", group_.name,
                   stranger->path == Path::kTcp ? peer_of(stranger->socket).first : "this host",
                   why);
    }
    strangers_.erase(stranger);
  }

  [[nodiscard]] std::string cannot_connect_to(int peer) const {
    return fmt::format("forming group \"{}\": cannot connect to rank {} (rank {} of the job)",
                       group_.name, peer, world_rank(peer));
  }

  [[noreturn]] void fail(std::chrono::milliseconds timeout) const {
    const double seconds = std::chrono::duration<double>(timeout).count();
    if (!dials_.empty()) {
      throw Timeout(fmt::format("{} within {:.3g} s: {}", cannot_connect_to(dials_.front().peer),
                                seconds, dials_.front().reason));
    }
    int peer = group_.rank + 1;
    while (met_[static_cast<std::size_t>(peer)].socket) {
      ++peer;
    }
    throw Timeout(
        fmt::format("forming group \"{}\": rank {} (rank {} of the job) did not connect within "
                    "{:.3g} s",
                    group_.name, peer, world_rank(peer), seconds));
  }

  const PeerGroup& group_;
  const WireOptions& options_;
  Whereabouts mine_;
  std::vector<Whereabouts> theirs_;
  FileDescriptor tcp_listener_;
  FileDescriptor unix_listener_;
  std::list<Dial> dials_;
  std::list<Stranger> strangers_;  ///< in the order they came, which is that of their deadlines
  std::vector<MetPeer> met_;
  int missing_ = 0;
  std::int64_t turned_away_ = 0;
};

}  // namespace

std::string_view name_of(WireSecurity security) {
  switch (security) {
    case WireSecurity::kAuthenticated:
      return "authenticated";
    case WireSecurity::kEncrypted:
      return "encrypted";
    case WireSecurity::kTrusted:
      return "trusted";
  }
  return "?";
}

std::vector<MetPeer> meet_peers(const PeerGroup& group,
                                const WireOptions& options,
                                Store& store,
                                std::chrono::milliseconds timeout) {
  return Meeting(group, options).run(store, timeout);
}

}  // namespace dstrain
