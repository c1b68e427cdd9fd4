// Bytes that come just after a stream was looked at. Every call of libssh2 takes all that has come
// from the socket, whichever stream it is of, so what comes between two calls of a turn is taken
// from where the event loop would be told of it: the launcher has to look again, or it waits for
// bytes that it has. Here the socket, whenever it has nothing, says so only once it has something.
#include <atomic>
#include <cerrno>
#include <chrono>

#include <catch2/catch.hpp>
#include <poll.h>
#include <sys/socket.h>

#include "tests/cluster/skip.h"
#include "tests/cluster/ssh_client.h"

namespace {
std::atomic<bool> is_late{false};
}

extern "C" ssize_t __real_recv(int socket, void* buffer, std::size_t size, int flags);

/// recv() of the launcher (CMakeLists.txt: --wrap).
extern "C" ssize_t __wrap_recv(int socket, void* buffer, std::size_t size, int flags) {
  constexpr int kMostMilliseconds = 20;
  const ssize_t received = __real_recv(socket, buffer, size, flags);
  if (is_late && received < 0 && errno == EAGAIN) {
    pollfd readable{.fd = socket, .events = POLLIN, .revents = 0};
    poll(&readable, 1, kMostMilliseconds);
    errno = EAGAIN;
  }
  return received;
}

namespace dstrain {
namespace {

using std::chrono::seconds;
using testing::Cluster;
using testing::Outcome;
using testing::SshClient;

TEST_CASE("bytes that come between two calls of a turn are not left lying", "[cluster][ssh]") {
  if (testing::no_cluster_here()) return;
  Cluster cluster{1};
  SshClient client{cluster};
  auto connected = client.connect({cluster.host(0).ipv4()});
  REQUIRE(connected.failures.empty());
  launcher::SshConnection& connection = *connected.connections.at(0);
  is_late = true;

  // A window full of them, from which the host goes on once it is read.
  constexpr std::size_t kBytes = 32 << 20;
  const auto flood = client.start(connection, {"head", "-c", std::to_string(kBytes), "/dev/zero"});
  Outcome flooded;
  SshClient::record(*flood, flooded);
  CHECK(client.run_until([&] { return flooded.end.has_value(); }, seconds{60}));
  CHECK(flooded.out.size() == kBytes);

  // The words of a program that says no more until it is told to.
  for (int program = 0; program < 8; ++program) {
    const auto stream = client.start(connection, {"sh", "-c", "echo a; read end"});
    Outcome outcome;
    SshClient::record(*stream, outcome);
    CHECK(client.run_until([&] { return outcome.out == "a\n"; }, seconds{3}));
  }
  is_late = false;
}

}  // namespace
}  // namespace dstrain
