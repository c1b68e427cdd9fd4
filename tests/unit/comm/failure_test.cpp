// What goes wrong between ranks: calls that do not match, members that are late, leave, abort or
// die. Every wait ends, with a sentence that says which group, operation and rank.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <thread>

#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/comm/socket.h"
#include "engine/comm/tcp_store.h"
#include "tests/harness/captured_log.h"
#include "tests/unit/comm/ranks.h"

namespace dstrain {
namespace {

using namespace std::chrono_literals;
using Catch::Matchers::Contains;

const Carrier kCarriers[] = {Carrier::kLocal, Carrier::kShared, Carrier::kUnix, Carrier::kTcp,
                             Carrier::kHosts};

Tensor tensor(std::vector<float>& values) {
  return {values.data(), DType::kF32, Shape{static_cast<std::int64_t>(values.size())}};
}

void all_reduce(Communicator& group, std::vector<float>& values) {
  InlineStream stream;
  group.all_reduce(tensor(values), ReduceOp::kSum, Purpose::kGradient, stream);
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The text of what each rank's `body` threw, whatever it was.
std::vector<std::string> run_and_collect(Carrier carrier,
                                         int size,
                                         const std::function<void(Communicator&)>& body,
                                         std::chrono::milliseconds timeout = 20s) {
  std::vector<std::string> messages(static_cast<std::size_t>(size));
  run_ranks(
      carrier, size,
      [&](Communicator& group) {
        messages[static_cast<std::size_t>(group.rank())] =
            thrown<std::exception>([&] { body(group); });
      },
      timeout);
  return messages;
}

TEST_CASE("two members whose calls differ get both calls in the error", "[comm]") {
  for (const Carrier carrier : kCarriers) {
    INFO(name_of(carrier));
    const auto start = Clock::now();
    const auto messages = run_and_collect(carrier, 2, [](Communicator& group) {
      InlineStream stream;
      std::vector<float> values(group.rank() == 0 ? 8 : 9);
      group.all_reduce(tensor(values), ReduceOp::kSum, Purpose::kGradient, stream);
    });
    const std::string& told =
        messages[0].find("f32[9]") != std::string::npos ? messages[0] : messages[1];
    CHECK_THAT(told, Contains("all_reduce(f32[8], sum, gradient)") &&
                         Contains("all_reduce(f32[9]") && Contains("\"world\""));
    CHECK_FALSE(messages[0].empty());
    CHECK_FALSE(messages[1].empty());
    CHECK(seconds_since(start) < 5.0);
  }
}

TEST_CASE("different operations at the same time are a mistake, not a hang", "[comm]") {
  for (const Carrier carrier : kCarriers) {
    INFO(name_of(carrier));
    const auto messages = run_and_collect(carrier, 2, [](Communicator& group) {
      InlineStream stream;
      std::vector<float> values(100'000);
      if (group.rank() == 0) {
        group.all_reduce(tensor(values), ReduceOp::kSum, Purpose::kGradient, stream);
      } else {
        group.barrier();
      }
    });
    const std::string& told =
        messages[0].find("barrier()") != std::string::npos ? messages[0] : messages[1];
    CHECK_THAT(told, Contains("barrier()") && Contains("all_reduce(f32[100000]"));
  }
}

TEST_CASE("an exchange whose two ends differ in size is named", "[comm]") {
  for (const Carrier carrier : kCarriers) {
    INFO(name_of(carrier));
    const auto messages = run_and_collect(carrier, 2, [](Communicator& group) {
      InlineStream stream;
      std::vector<float> values(group.rank() == 0 ? 5 : 6);
      const std::array<P2p, 1> messages_of_rank{
          P2p{group.rank() == 0 ? P2p::Kind::kSend : P2p::Kind::kReceive, 1 - group.rank(),
              tensor(values)}};
      group.exchange(messages_of_rank, Purpose::kActivation, stream);
    });
    CHECK_THAT(messages[0] + messages[1], Contains("exchange"));
    CHECK_FALSE(messages[0].empty());
    CHECK_FALSE(messages[1].empty());
  }
}

TEST_CASE("members that disagree about a part of an all_to_all are reported", "[comm]") {
  for (const Carrier carrier : kCarriers) {
    INFO(name_of(carrier));
    const auto messages = run_and_collect(carrier, 2, [](Communicator& group) {
      InlineStream stream;
      // Rank 0 gives 2 elements to rank 1, which takes one.
      std::vector<float> in(group.rank() == 0 ? 3 : 1);
      std::vector<float> out(group.rank() == 0 ? 1 : 2);
      const std::vector<std::int64_t> sent =
          group.rank() == 0 ? std::vector<std::int64_t>{1, 2} : std::vector<std::int64_t>{0, 1};
      const std::vector<std::int64_t> received =
          group.rank() == 0 ? std::vector<std::int64_t>{1, 0} : std::vector<std::int64_t>{1, 1};
      group.all_to_all(tensor(in), sent, tensor(out), received, Purpose::kActivation, stream);
    });
    CHECK_THAT(messages[0] + messages[1], Contains("all_to_all"));
    CHECK_FALSE(messages[0].empty());
    CHECK_FALSE(messages[1].empty());
  }
}

TEST_CASE("a member that does not come to an all_to_all is a Timeout", "[comm]") {
  for (const Carrier carrier : kCarriers) {
    INFO(name_of(carrier));
    std::string waited;
    run_ranks(
        carrier, 2,
        [&](Communicator& group) {
          InlineStream stream;
          std::vector<float> in(3);
          std::vector<float> out(3);
          const std::vector<std::int64_t> counts{1, 2};
          if (group.rank() == 0) {
            waited = thrown<Timeout>([&] {
              group.all_to_all(tensor(in), counts, tensor(out), counts, Purpose::kActivation,
                               stream);
            });
          } else {
            std::this_thread::sleep_for(400ms);
          }
        },
        200ms);
    CHECK_THAT(waited, Contains("\"world\"") && Contains("all_to_all") && Contains("activation"));
  }
}

TEST_CASE("a member that leaves before an all_to_all is lost at once", "[comm]") {
  for (const Carrier carrier : kCarriers) {
    INFO(name_of(carrier));
    std::string lost;
    run_ranks(carrier, 2, [&](Communicator& group) {
      InlineStream stream;
      std::vector<float> in(3);
      std::vector<float> out(3);
      const std::vector<std::int64_t> counts{1, 2};
      if (group.rank() == 0) {
        lost = thrown<PeerLost>([&] {
          group.all_to_all(tensor(in), counts, tensor(out), counts, Purpose::kActivation, stream);
        });
      }
    });
    CHECK_THAT(lost, Contains("all_to_all"));
  }
}

TEST_CASE("a member that does not come is a Timeout with group, operation and rank", "[comm]") {
  for (const Carrier carrier : kCarriers) {
    INFO(name_of(carrier));
    const auto start = Clock::now();
    std::string waited;
    run_ranks(
        carrier, 2,
        [&](Communicator& group) {
          std::vector<float> values(3);
          if (group.rank() == 0) {
            waited = thrown<Timeout>([&] { all_reduce(group, values); });
          } else {
            std::this_thread::sleep_for(400ms);
          }
        },
        200ms);
    CHECK_THAT(waited, Contains("\"world\"") && Contains("all_reduce(f32[3], sum, gradient)") &&
                           Contains("rank") && Contains("1") && Contains("0.2"));
    CHECK(seconds_since(start) < 5.0);
  }
}

TEST_CASE("abort wakes every member with PeerLost, and later calls fail too", "[comm]") {
  for (const Carrier carrier : kCarriers) {
    INFO(name_of(carrier));
    std::array<std::string, 3> waited;
    std::array<std::string, 3> later;
    std::array<double, 3> woken_after{};
    run_ranks(carrier, 3, [&](Communicator& group) {
      const auto rank = static_cast<std::size_t>(group.rank());
      std::vector<float> values(100'000);
      const auto start = Clock::now();
      std::jthread aborter;
      if (rank == 0) {
        aborter = std::jthread([&] {
          std::this_thread::sleep_for(50ms);
          group.abort();
        });
      }
      if (rank != 2) {  // rank 2 never joins in
        waited[rank] = thrown<PeerLost>([&] { all_reduce(group, values); });
      } else {
        std::this_thread::sleep_for(300ms);
      }
      woken_after[rank] = seconds_since(start);
      later[rank] = thrown<PeerLost>([&] { group.barrier(); });
    });
    CHECK_THAT(waited[0], Contains("aborted"));
    CHECK_THAT(waited[1], Contains("\"world\""));
    for (const std::string& message : later) {
      CHECK_FALSE(message.empty());
    }
    CHECK(*std::max_element(woken_after.begin(), woken_after.end()) < 2.0);
  }
}

TEST_CASE("a member that leaves is lost at once to those who wait for it", "[comm]") {
  for (const Carrier carrier : kCarriers) {
    INFO(name_of(carrier));
    const auto start = Clock::now();
    std::string message;
    run_ranks(carrier, 2, [&](Communicator& group) {
      std::vector<float> values(3);
      all_reduce(group, values);
      if (group.rank() == 0) {
        message = thrown<PeerLost>([&] { all_reduce(group, values); });
      }
    });
    CHECK_THAT(message, Contains("left the group") && Contains("all_reduce"));
    CHECK(seconds_since(start) < 2.0);
  }
}

TEST_CASE("a last message is not lost when its sender leaves right behind it", "[comm]") {
  float received = 0.0f;
  run_ranks(Carrier::kTcp, 2, [&](Communicator& group) {
    InlineStream stream;
    std::vector<float> values{group.rank() == 0 ? 7.0f : 0.0f};
    if (group.rank() == 1) {  // the root is done, and gone if it may, long before this one looks
      std::this_thread::sleep_for(100ms);
    }
    group.broadcast(tensor(values), 0, Purpose::kParameter, stream);
    if (group.rank() == 1) {
      received = values[0];
    }
  });
  CHECK(received == 7.0f);
}

TEST_CASE("a group whose member does not join is a Timeout that names it", "[comm]") {
  const auto store = make_memory_store();
  std::array<std::string, 3> messages;
  run_threads(2, [&](int rank) {
    const auto rendezvous =
        make_process_rendezvous(rank, 4, *store, {.wire = wire_here(), .connect_timeout = 100ms});
    messages[static_cast<std::size_t>(rank)] =
        thrown<Timeout>([&] { (void)rendezvous->make_group("world", everyone(4)); });
  });
  CHECK_THAT(messages[0], Contains("rank(s) 2, 3 of the job") && Contains("\"world\""));
  CHECK_THAT(messages[1], Contains("rank(s) 2, 3 of the job"));
}

TEST_CASE("a member that meets the others and is gone before it connects is named", "[comm]") {
  const auto store = make_memory_store();
  std::string message;
  const auto start = Clock::now();
  run_threads(2, [&](int rank) {
    if (rank == 0) {
      const auto rendezvous =
          make_process_rendezvous(0, 2, *store, {.wire = wire_here(), .connect_timeout = 300ms});
      message =
          thrown<std::runtime_error>([&] { (void)rendezvous->make_group("world", everyone(2)); });
      return;
    }
    // Written as in engine/comm/peer_meeting.cpp: no shared host, and an address where nobody
    // listens. Rank 1 is the one that would connect, and does not come.
    sockaddr_in6 address{};
    auto& ipv4 = reinterpret_cast<sockaddr_in&>(address);
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = htons(1);
    ipv4.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    std::string entry(24, '\0');
    entry.append(reinterpret_cast<const char*>(&address), sizeof address);
    const std::string row = entry + entry;
    (void)store->all_to_all({.key = "group/world",
                             .rank = 1,
                             .size = 2,
                             .agreed = "members 0,1, network.security \"authenticated\"",
                             .row = row},
                            5s);
  });
  CHECK_THAT(message, Contains("forming group \"world\"") && Contains("rank 1"));
  CHECK(seconds_since(start) < 4.0);
}

TEST_CASE("members with different ideas of a group are reported", "[comm]") {
  const auto store = make_memory_store();
  std::array<std::string, 2> messages;
  run_threads(2, [&](int rank) {
    const auto rendezvous =
        make_process_rendezvous(rank, 3, *store, {.wire = wire_here(), .connect_timeout = 200ms});
    const std::vector<int> members = rank == 0 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2};
    messages[static_cast<std::size_t>(rank)] =
        thrown<InternalError>([&] { (void)rendezvous->make_group("world", members); });
  });
  for (const std::string& told : messages) {
    CHECK_THAT(told,
               Contains("group/world") && Contains("members 0,1, ") && Contains("members 0,1,2, "));
  }
}

/// Ranks as processes of their own, over a TcpStore; `body`'s result is the process's exit code.
class Processes {
 public:
  using Body = std::function<int(Communicator&)>;
  Processes(int size,
            std::chrono::milliseconds timeout,
            const Body& body,
            HostPath path = HostPath::kSharedMemory)
      : server_("127.0.0.1", 0, "token"), path_(path) {
    for (int rank = 0; rank < size; ++rank) {
      const pid_t pid = fork();
      REQUIRE(pid >= 0);
      if (pid == 0) {
        _exit(run(rank, size, timeout, body));
      }
      pids_.push_back(pid);
    }
  }
  ~Processes() {
    for (const pid_t pid : pids_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }
  void signal(int rank, int number) const { kill(pids_[static_cast<std::size_t>(rank)], number); }
  /// Exit code, 128 + signal, or -1 if it has not ended in time.
  int wait(int rank, std::chrono::milliseconds patience) {
    const auto deadline = Clock::now() + patience;
    pid_t& pid = pids_[static_cast<std::size_t>(rank)];
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
      if (Clock::now() > deadline) {
        return -1;
      }
      std::this_thread::sleep_for(2ms);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  /// Waits until every rank has reported in the store.
  void wait_until_all(std::string_view key, int count) const {
    const auto store = make_tcp_store("127.0.0.1", server_.port(), "token", 5s);
    const auto deadline = Clock::now() + 10s;
    while (store->add(key, 0) < count && Clock::now() < deadline) {
      std::this_thread::sleep_for(2ms);
    }
  }

 private:
  int run(int rank, int size, std::chrono::milliseconds timeout, const Body& body) const {
    constexpr int kPeerLost = 10;
    constexpr int kTimeout = 11;
    constexpr int kOther = 12;
    try {
      const auto store = make_tcp_store("127.0.0.1", server_.port(), "token", 5s);
      const auto rendezvous = make_process_rendezvous(
          rank, size, *store, {.wire = wire_here(path_), .timeout = timeout});
      const auto group = rendezvous->make_group("world", everyone(size));
      store->add("ready", 1);
      return body(*group);
    } catch (const PeerLost&) {
      return kPeerLost;
    } catch (const Timeout&) {
      return kTimeout;
    } catch (const std::exception&) {
      return kOther;
    }
  }

  TcpStoreServer server_;
  const HostPath path_;
  std::vector<pid_t> pids_;
};

int reduce_forever(Communicator& group) {
  std::vector<float> values(4 << 20);
  for (;;) {
    all_reduce(group, values);
  }
}

/// From here on this thread can make no memory to share.
void forbid_memfd_create() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = std::size(program), .filter = program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    throw std::runtime_error("no filter of system calls");
  }
}

TEST_CASE("ranks without shared memory talk through sockets, and each says so once", "[comm]") {
  const testing::CapturedLog log;
  const auto store = make_memory_store();
  std::array<std::vector<float>, 3> sums;
  run_threads(3, [&](int rank) {
    if (rank == 0) {
      forbid_memfd_create();  // it would give to both others, who share memory with each other
    }
    const auto rendezvous = make_process_rendezvous(rank, 3, *store, {.wire = wire_here()});
    for (const char* const name : {"first", "second"}) {
      const auto group = rendezvous->make_group(name, everyone(3));
      auto& values = sums[static_cast<std::size_t>(rank)];
      values.assign(700'007, static_cast<float>(rank + 1));
      all_reduce(*group, values);
    }
  });
  for (const auto& values : sums) {
    CHECK(std::count(values.begin(), values.end(), 6.0F) == 700'007);
  }
  CHECK(log.lines_with("no shared memory") == 3);
  CHECK(log.lines_with("memfd_create: Operation not permitted") == 1);
}

TEST_CASE("processes that meet in a TCP store sum what threads would sum", "[comm]") {
  Processes ranks(2, 20s, [](Communicator& group) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < 300'007; ++i) {
      values.push_back(static_cast<float>(sample(group.rank(), i)));
    }
    all_reduce(group, values);
    for (std::int64_t i = 0; i < 300'007; ++i) {
      const float want = static_cast<float>(sample(0, i)) + static_cast<float>(sample(1, i));
      if (values[static_cast<std::size_t>(i)] != want) {
        return 1;
      }
    }
    return 0;
  });
  CHECK(ranks.wait(0, 10s) == 0);
  CHECK(ranks.wait(1, 10s) == 0);
}

TEST_CASE("when a process is killed in a collective the others know within two seconds", "[comm]") {
  for (const HostPath path : {HostPath::kSharedMemory, HostPath::kUnixSocket, HostPath::kTcp}) {
    for (const int size : {2, 4}) {
      Processes ranks(size, 60s, reduce_forever, path);
      ranks.wait_until_all("ready", size);
      std::this_thread::sleep_for(150ms);
      ranks.signal(1, SIGKILL);
      const auto start = Clock::now();
      CHECK(ranks.wait(1, 2s) == 128 + SIGKILL);
      for (const int survivor : {0, 2, 3}) {
        if (survivor < size) {
          CHECK(ranks.wait(survivor, 2s) == 10);
        }
      }
      CHECK(seconds_since(start) < 2.0);
    }
  }
}

TEST_CASE("a stopped process is a Timeout to the others, at the deadline", "[comm]") {
  for (const HostPath path : {HostPath::kSharedMemory, HostPath::kUnixSocket}) {
    Processes ranks(2, 500ms, reduce_forever, path);
    ranks.wait_until_all("ready", 2);
    std::this_thread::sleep_for(50ms);
    ranks.signal(1, SIGSTOP);
    CHECK(ranks.wait(0, 3s) == 11);
  }
}

}  // namespace
}  // namespace dstrain
