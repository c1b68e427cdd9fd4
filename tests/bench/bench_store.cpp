// bench_store: measures what it costs rank 0 when thousands of ranks meet in its store. Simulated
// ranks, all of them in one other process, do what real ones do: connect, prove that they know the
// token, say that they have arrived, wait until everybody has, then exchange the addresses of a
// group of all of them. Prints seconds by phase and the processor time of the store's process, in
// total and per rank, and the bytes of the exchange.
//
//   bench_store [ranks, default 256, 1000 and 4000 in turn]
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/comm/handshake.h"
#include "engine/comm/socket.h"
#include "engine/comm/store_protocol.h"
#include "engine/comm/tcp_store.h"
#include "kernels/core/check.h"

namespace dstrain::bench {
namespace {

namespace protocol = store_protocol;
using protocol::Request;

constexpr const char* kToken = "the token of a benchmark";
constexpr std::size_t kAddressBytes = 52;  // of a pair of ranks

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::string request_of(Request request, const std::string& key, const std::string& argument) {
  std::string frame;
  put_number(frame, request);
  put_number(frame, static_cast<std::uint16_t>(key.size()));
  return frame + key + argument;
}
std::string get_request(const std::string& key) {
  std::string timeout;
  put_number(timeout, std::int64_t{120'000});
  return request_of(Request::kGet, key, timeout);
}

std::size_t row_bytes(int ranks) {
  return static_cast<std::size_t>(ranks) * kAddressBytes;
}
std::string row_request(int rank, int ranks) {
  const std::string row(row_bytes(ranks), 'a');
  const AllToAll call{.key = "group/world", .rank = rank, .size = ranks, .agreed = "", .row = row};
  return request_of(Request::kAllToAll, std::string(call.key),
                    protocol::argument_of(call, std::chrono::minutes(2)));
}

/// One simulated rank: a connection, and what it has still to say.
class SimulatedRank {
 public:
  SimulatedRank(int rank, int ranks, std::uint16_t port) : rank_(rank), ranks_(ranks) {
    connect(port);
  }

  void connect(std::uint16_t port) {
    socket_ = connect_to("127.0.0.1", port, Clock::now() + std::chrono::seconds(30));
    in_.clear();
    proven_ = false;
    handshake_.emplace(protocol::kMagic, kToken, protocol::kSubject, 0u);
  }

  [[nodiscard]] int fd() const { return socket_.get(); }
  [[nodiscard]] bool proven() const { return proven_; }
  [[nodiscard]] bool met() const { return answered_ >= 2; }
  [[nodiscard]] bool done() const { return answered_ == 3; }

  /// Returns false if the store has closed the connection.
  bool advance() {
    std::array<char, 65536> buffer;
    for (;;) {
      const ssize_t got = recv(fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got < 0 && errno == EAGAIN) {
        return true;
      }
      if (got <= 0) {
        return false;
      }
      in_.append(buffer.data(), static_cast<std::size_t>(got));
      while (take_message()) {
      }
    }
  }

 private:
  bool take_message() {
    if (!proven_) {
      const std::size_t wanted = handshake_->wanted();
      if (in_.size() < wanted) {
        return false;
      }
      using State = DialingHandshake::State;
      const State state = handshake_->take(std::string_view(in_).substr(0, wanted));
      in_.erase(0, wanted);
      if (state == State::kVerdict) {
        send(handshake_->hello());
        return true;
      }
      check(state == State::kDone, "rank {} was refused", rank_);
      const WireKeys& keys = handshake_->keys();
      seals_ = FrameSeal(Sealing::kEncrypted, keys.from_dialer, FrameSeal::End::kSeals);
      opens_ = FrameSeal(Sealing::kEncrypted, keys.from_acceptor, FrameSeal::End::kOpens);
      proven_ = true;
      say(next_request());
      return true;
    }
    if (in_.size() < protocol::kLengthBytes) {
      return false;
    }
    std::string_view view = in_;
    const std::size_t whole =
        protocol::kLengthBytes + take_number<std::uint32_t>(view) + protocol::kTagBytes;
    if (in_.size() < whole) {
      return false;
    }
    std::string frame = in_.substr(0, whole);
    const auto answer = protocol::open_frame(opens_, frame);
    check(answer && answer->front() == '\0', "rank {}: request {} was not answered", rank_,
          answered_);
    in_.erase(0, whole);
    ++answered_;
    if (!done()) {
      say(next_request());
    }
    return true;
  }

  [[nodiscard]] std::string next_request() const {
    switch (answered_) {
      case 0:
        return request_of(Request::kSet, fmt::format("arrived/{}", rank_), "1");
      case 1:
        return get_request("everybody-arrived");
      default:
        return row_request(rank_, ranks_);
    }
  }

  void say(const std::string& request) { send(protocol::sealed_frame(seals_, request)); }
  void send(const std::string& bytes) {
    send_all(socket_, bytes, Clock::now() + std::chrono::seconds(30));
  }

  int rank_;
  int ranks_;
  FileDescriptor socket_;
  std::string in_;
  std::optional<DialingHandshake> handshake_;
  FrameSeal seals_;
  FrameSeal opens_;
  bool proven_ = false;
  int answered_ = 0;
};

struct PhaseSeconds {
  double proven = 0.0;
  double met = 0.0;
  double exchanged = 0.0;
  int reconnects = 0;
};

/// All ranks but 0, which the caller is.
PhaseSeconds run_swarm(int ranks, std::uint16_t port) {
  const auto begin = Clock::now();
  const FileDescriptor poller(epoll_create1(EPOLL_CLOEXEC));
  std::vector<SimulatedRank> swarm;
  swarm.reserve(static_cast<std::size_t>(ranks));
  const auto watch = [&](std::size_t index) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = index}};
    check(epoll_ctl(poller.get(), EPOLL_CTL_ADD, swarm[index].fd(), &event) == 0, "epoll_ctl: {}",
          errno);
  };
  PhaseSeconds seconds;
  std::size_t proven = 0;
  std::size_t met = 0;
  std::size_t done = 0;
  const auto total = static_cast<std::size_t>(ranks - 1);
  std::array<epoll_event, 256> events;
  while (done < total) {
    // Real ranks come from many hosts at once; this process opens a few between answers.
    for (int i = 0; i < 64 && swarm.size() < total; ++i) {
      swarm.emplace_back(static_cast<int>(swarm.size()) + 1, ranks, port);
      watch(swarm.size() - 1);
    }
    const int count = epoll_wait(poller.get(), events.data(), static_cast<int>(events.size()),
                                 swarm.size() < total ? 0 : 60'000);
    check(count >= 0 && (count > 0 || swarm.size() < total), "the store has gone silent");
    for (int i = 0; i < count; ++i) {
      SimulatedRank& rank = swarm[events[static_cast<std::size_t>(i)].data.u64];
      const bool was_proven = rank.proven();
      const bool had_met = rank.met();
      const bool was_done = rank.done();
      if (!rank.advance()) {
        check(!rank.proven(), "the store has closed a connection that it knew");
        ++seconds.reconnects;
        rank.connect(port);
        watch(events[static_cast<std::size_t>(i)].data.u64);
        continue;
      }
      if (!was_proven && rank.proven() && ++proven == total) {
        seconds.proven = seconds_since(begin);
      }
      if (!had_met && rank.met() && ++met == total) {
        seconds.met = seconds_since(begin);
      }
      if (!was_done && rank.done()) {
        ++done;
      }
    }
  }
  seconds.exchanged = seconds_since(begin);
  return seconds;
}

void measure(int ranks) {
  TcpStoreServer server("127.0.0.1", 0, kToken);
  const std::uint16_t port = server.port();
  std::array<int, 2> pipe_ends{};
  check(pipe(pipe_ends.data()) == 0, "pipe: {}", errno);
  const double before = processor_seconds();
  const pid_t child = fork();
  check(child >= 0, "fork: {}", errno);
  if (child == 0) {
    const PhaseSeconds seconds = run_swarm(ranks, port);
    [[maybe_unused]] const ssize_t written = write(pipe_ends[1], &seconds, sizeof seconds);
    _exit(0);
  }
  // Rank 0, as in dstrain train.
  const auto store = make_tcp_store("127.0.0.1", port, kToken);
  store->set("arrived/0", "1");
  for (int rank = 0; rank < ranks; ++rank) {
    (void)store->get(fmt::format("arrived/{}", rank), std::chrono::minutes(2));
  }
  store->set("everybody-arrived", "1");
  const std::string row(row_bytes(ranks), 'a');
  const Column column =
      store->all_to_all({.key = "group/world", .rank = 0, .size = ranks, .agreed = "", .row = row},
                        std::chrono::minutes(2));
  check(column.entries == row, "the exchange has brought {} bytes", column.entries.size());
  PhaseSeconds seconds;
  const ssize_t got = read(pipe_ends[0], &seconds, sizeof seconds);
  check(got == static_cast<ssize_t>(sizeof seconds), "the simulated ranks have failed");
  int status = 0;
  waitpid(child, &status, 0);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  const double cost = processor_seconds() - before;
  const double exchanged_mb = 2e-6 * static_cast<double>(ranks) * static_cast<double>(row.size());
  fmt::print("{:>7} {:>10.2f} {:>8.2f} {:>10.2f} {:>11} {:>13.2f} {:>11.0f} {:>13.1f}\n", ranks,
             seconds.proven, seconds.met, seconds.exchanged, seconds.reconnects, cost,
             1e6 * cost / ranks, exchanged_mb);
}

}  // namespace
}  // namespace dstrain::bench

int main(int argc, char** argv) {
  using namespace dstrain;
  spdlog::set_level(spdlog::level::err);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  fmt::print(
      "  ranks   proven s    met s  addresses s  reconnects  store's CPU s  us a rank  addresses "
      "MB\n");
  std::vector<int> sizes{256, 1000, 4000};
  if (argc > 1) {
    sizes = {std::atoi(argv[1])};
  }
  for (const int ranks : sizes) {
    bench::measure(ranks);
  }
  return 0;
}
