#include "tests/cluster/wire_attacker.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <new>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

namespace dstrain::testing {
namespace {

constexpr uid_t kNobody = 65534;
constexpr std::string_view kListening = "0A";
/// Shorter messages are passed on as they are: heads and handshakes, so that the relay stays.
constexpr std::size_t kLongMessage = 512;
constexpr std::size_t kKeptBytes = 256;
/// How long a connection's other end has to say the first word.
constexpr std::chrono::milliseconds kSilence{20};
/// How long a port is watched for its becoming free.
constexpr std::chrono::milliseconds kPatience{500};

using Clock = std::chrono::steady_clock;
using Manner = WireAttacker::Manner;

struct Endpoint {
  sockaddr_storage address{};
  socklen_t length = 0;
};

/// "0100007F:1F90", or of IPv6; every interface is taken for the loopback.
Endpoint tcp_endpoint(const std::string& text) {
  const std::size_t colon = text.find(':');
  const auto port = static_cast<std::uint16_t>(std::stoul(text.substr(colon + 1), nullptr, 16));
  Endpoint endpoint;
  if (colon == 8) {
    auto& address = reinterpret_cast<sockaddr_in&>(endpoint.address);
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr =
        static_cast<std::uint32_t>(std::stoul(text.substr(0, colon), nullptr, 16));
    if (address.sin_addr.s_addr == INADDR_ANY) address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    endpoint.length = sizeof address;
  } else {
    auto& address = reinterpret_cast<sockaddr_in6&>(endpoint.address);
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(port);
    for (std::size_t word = 0; word < 4; ++word) {
      const auto value =
          static_cast<std::uint32_t>(std::stoul(text.substr(8 * word, 8), nullptr, 16));
      std::memcpy(address.sin6_addr.s6_addr + 4 * word, &value, sizeof value);
    }
    if (IN6_IS_ADDR_UNSPECIFIED(&address.sin6_addr)) address.sin6_addr = in6addr_loopback;
    endpoint.length = sizeof address;
  }
  return endpoint;
}

/// "@name": /proc writes the zero byte before an abstract name as "@".
Endpoint unix_endpoint(const std::string& name) {
  Endpoint endpoint;
  auto& address = reinterpret_cast<sockaddr_un&>(endpoint.address);
  address.sun_family = AF_UNIX;
  const std::size_t bytes = std::min(name.size(), sizeof address.sun_path);
  std::memcpy(address.sun_path, name.data(), bytes);
  address.sun_path[0] = '\0';
  endpoint.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + bytes);
  return endpoint;
}

class Attack {
 public:
  Attack(AttackCounts& counts, Manner manner, unsigned seed)
      : counts_(counts), disturbs_(manner == Manner::kAnything), random_(seed) {}

  [[noreturn]] void run() {
    while (true) {
      connect_to_the_new("/proc/self/net/tcp");
      connect_to_the_new("/proc/self/net/tcp6");
      connect_to_the_new_unix();
      take_places();
      make_relays();
      serve();
    }
  }

 private:
  /// A port that may become free.
  struct Place {
    Endpoint endpoint;
    int connection = -1;  ///< to who listened there first
    Clock::time_point since;
    int listener = -1;  ///< ours
  };
  struct Waiting {
    int connection = -1;
    Clock::time_point since;
  };
  struct Connection {
    int fd = -1;
    int other = -1;  ///< the relay's other end: its place in connections_
    [[nodiscard]] bool paired() const { return other >= 0; }
  };

  void connect_to_the_new(const char* table) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);  // the heading
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string number, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      words >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
          timeout >> inode;
      const bool own = user == std::to_string(kNobody);
      if (state == kListening && !own && known_.insert(inode).second) approach(tcp_endpoint(local));
    }
  }

  void connect_to_the_new_unix() {
    constexpr unsigned long kAccepts = 0x10000;  // __SO_ACCEPTCON
    std::ifstream file("/proc/self/net/unix");
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string number, references, protocol, flags, type, state, inode, name;
      words >> number >> references >> protocol >> flags >> type >> state >> inode >> name;
      if (name.starts_with('@') && (std::stoul(flags, nullptr, 16) & kAccepts) != 0 &&
          known_.insert(inode).second) {
        approach(unix_endpoint(name));
      }
    }
  }

  /// One connection to become a relay's end, and mostly one to disturb.
  void approach(const Endpoint& endpoint) {
    if (const int end = open_connection(endpoint); end >= 0) {
      waiting_.push_back({.connection = end, .since = Clock::now()});
      if (endpoint.address.ss_family != AF_UNIX) {
        places_.push_back({.endpoint = endpoint, .connection = end, .since = Clock::now()});
      }
    }
    if (!disturbs_) return;
    const int nuisance = open_connection(endpoint);
    if (nuisance < 0) return;
    std::string words;
    switch (std::uniform_int_distribution<>(0, 3)(random_)) {
      case 0:
        break;  // silent
      case 1:
        for (int i = 0; i < 4096; ++i)
          words += static_cast<char>(random_());
        break;
      case 2:
        words = heard_;
        break;
      default:
        words = heard_.substr(0, heard_.size() / 2);
    }
    (void)!send(connections_[static_cast<std::size_t>(nuisance)].fd, words.data(), words.size(),
                MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  // A process that stops listening once it has a connection, ours, leaves its port to us: its peer,
  // which comes a moment later, then talks to it through us.
  void take_places() {
    std::erase_if(places_, [this](Place& place) {
      if (place.listener < 0) {
        place.listener = listen_at(place.endpoint);
        return place.listener < 0 && Clock::now() - place.since > kPatience;
      }
      const int caller = accept4(place.listener, nullptr, nullptr, SOCK_NONBLOCK);
      if (caller < 0) return false;
      connections_.push_back({.fd = caller});
      join(static_cast<int>(connections_.size()) - 1, place.connection);
      close(place.listener);
      return true;
    });
  }

  static int listen_at(const Endpoint& endpoint) {
    const int fd = socket(endpoint.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
    const int yes = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(fd, reinterpret_cast<const sockaddr*>(&endpoint.address), endpoint.length) == 0 &&
        listen(fd, 8) == 0) {
      return fd;
    }
    close(fd);
    return -1;
  }

  void join(int one, int other) {
    connections_[static_cast<std::size_t>(one)].other = other;
    connections_[static_cast<std::size_t>(other)].other = one;
    ++counts_.relays;
  }

  // Connects an end that greets with another that greets, and one that waits with another that
  // waits.
  void make_relays() {
    const Clock::time_point now = Clock::now();
    for (std::size_t i = 0; i < waiting_.size(); ++i) {
      Waiting& end = waiting_[i];
      pollfd entry{.fd = connections_[static_cast<std::size_t>(end.connection)].fd,
                   .events = POLLIN,
                   .revents = 0};
      if (connections_[static_cast<std::size_t>(end.connection)].paired()) {
        waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i--));
        continue;
      }
      const bool talks = poll(&entry, 1, 0) > 0;
      if (!talks && now - end.since < kSilence) continue;
      int& partner = talks ? talker_ : listener_;
      if (partner < 0) {
        partner = end.connection;
      } else {
        join(end.connection, partner);
        partner = -1;
      }
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i--));
    }
  }

  int open_connection(const Endpoint& endpoint) {
    const int fd = socket(endpoint.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&endpoint.address), endpoint.length) != 0 &&
        errno != EINPROGRESS) {
      close(fd);
      return -1;
    }
    ++counts_.connections;
    connections_.push_back({.fd = fd});
    return static_cast<int>(connections_.size()) - 1;
  }

  void serve() {
    std::vector<pollfd> entries;
    for (const Connection& connection : connections_)
      entries.push_back({.fd = connection.paired() || disturbs_ ? connection.fd : -1,
                         .events = POLLIN,
                         .revents = 0});
    if (poll(entries.data(), entries.size(), 0) <= 0) return;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].revents != 0) pass_on(connections_[i]);
    }
  }

  void pass_on(Connection& from) {
    const ssize_t size = recv(from.fd, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (size < 0 && errno == EAGAIN) return;
    Connection* const to =
        !from.paired() ? nullptr : &connections_[static_cast<std::size_t>(from.other)];
    if (size <= 0) {
      close(from.fd);
      from.fd = -1;
      if (to != nullptr && to->fd >= 0) shutdown(to->fd, SHUT_WR);
      return;
    }
    const auto bytes = static_cast<std::size_t>(size);
    if (heard_.size() < buffer_.size()) heard_.append(buffer_.data(), bytes);
    if (to == nullptr) return;
    if (bytes > kLongMessage) {
      for (std::size_t i = kKeptBytes + 3; i < bytes; i += 4) {
        buffer_[i] = static_cast<char>(buffer_[i] ^ 0x80);
        ++counts_.turned_signs;
      }
    }
    for (std::size_t sent = 0; sent < bytes && to->fd >= 0;) {
      const ssize_t now = send(to->fd, buffer_.data() + sent, bytes - sent, MSG_NOSIGNAL);
      if (now < 0 && errno != EAGAIN && errno != ENOTCONN) break;
      sent += static_cast<std::size_t>(std::max<ssize_t>(now, 0));
    }
    counts_.relayed_bytes += size;
  }

  AttackCounts& counts_;
  const bool disturbs_;
  std::mt19937 random_;
  std::set<std::string> known_;  ///< inodes of what listens
  std::vector<Connection> connections_;
  std::vector<Place> places_;
  std::vector<Waiting> waiting_;
  int talker_ = -1;  ///< relays' ends that have no other yet
  int listener_ = -1;
  std::string heard_;
  std::array<char, 65536> buffer_{};
};

[[noreturn]] void attack(const NamespaceHolder& network,
                         AttackCounts& counts,
                         Manner manner,
                         unsigned seed) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  close_range(STDERR_FILENO + 1, ~0U, 0);
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  descriptors.rlim_cur = descriptors.rlim_max;
  setrlimit(RLIMIT_NOFILE, &descriptors);
  try {
    network.enter_network();
    if (setgroups(0, nullptr) != 0 || setgid(kNobody) != 0 || setuid(kNobody) != 0) _exit(1);
    Attack(counts, manner, seed).run();
  } catch (const std::exception&) {
    _exit(1);
  }
}

}  // namespace

WireAttacker::WireAttacker(const NamespaceHolder& network, Manner manner, unsigned seed) {
  void* const shared = mmap(nullptr, sizeof(AttackCounts), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw std::runtime_error("no shared memory for the attacker's counts");
  counts_ = new (shared) AttackCounts{};
  pid_ = fork();
  if (pid_ == 0) attack(network, *counts_, manner, seed);
  if (pid_ < 0) throw std::runtime_error("the attacker cannot be started");
}

WireAttacker::~WireAttacker() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  munmap(counts_, sizeof(AttackCounts));
}

}  // namespace dstrain::testing
