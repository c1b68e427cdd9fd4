// Programs on hosts, over real sshds: their bytes, their ends, and what becomes of both when the
// connection breaks.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "tests/cluster/skip.h"
#include "tests/cluster/ssh_client.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Cluster;
using testing::Outcome;
using testing::SshClient;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A cluster, and a connection to its first host.
struct Connected {
  Cluster cluster{1};
  SshClient client{cluster};
  std::unique_ptr<launcher::SshConnection> connection;

  explicit Connected(milliseconds silence_limit = milliseconds{5000}) {
    client.options().silence_limit = silence_limit;
    auto result = client.connect({cluster.host(0).ipv4()});
    for (const auto& failure : result.failures)
      FAIL(failure.phase << ": " << failure.what);
    connection = std::move(result.connections.at(0));
  }
  testing::ClusterHost& host() { return cluster.host(0); }
  Outcome run(const std::vector<std::string>& argv, const std::string& input = {}) {
    return client.run(*connection, argv, input);
  }
  bool is_empty(seconds patience = seconds{10}) {
    return client.run_until(
        [&] {
          const auto left = host().processes();
          return std::none_of(left.begin(), left.end(), [](const auto& process) {
            return !process.command.starts_with("sshd:");
          });
        },
        patience);
  }
};

/// Bytes without a pattern that a lost piece could hide in.
std::string noise(size_t size) {
  std::string bytes(size, '\0');
  std::uint64_t state = 88172645463325252U;
  for (char& byte : bytes) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    byte = static_cast<char>(state >> 32);
  }
  return bytes;
}

TEST_CASE("a program's output, errors and end come back", "[cluster][ssh]") {
  if (testing::no_cluster_here()) return;
  Connected on;
  const Outcome said = on.run({"sh", "-c", "echo out; echo err >&2; cat; exit 7"}, "in\n");
  CHECK(said.out == "out\nin\n");
  CHECK(said.err == "err\n");
  REQUIRE(said.end);
  CHECK(said.end->exit_code == 7);
  CHECK(said.end->signal == 0);
  CHECK(said.end->why.empty());

  const Outcome killed = on.run({"sh", "-c", "kill -TERM $$"});
  REQUIRE(killed.end);
  CHECK_FALSE(killed.end->exit_code);
  CHECK(killed.end->signal == SIGTERM);

  const Outcome missing = on.run({"/no/such/program"});
  REQUIRE(missing.end);
  CHECK(missing.end->exit_code == 127);
  CHECK_THAT(missing.err, Contains("/no/such/program"));

  // Its output has ended long before it has.
  const auto start = Clock::now();
  const Outcome quiet = on.run({"sh", "-c", "exec >&- 2>&-; sleep 0.5; exit 3"});
  REQUIRE(quiet.end);
  CHECK(quiet.end->exit_code == 3);
  CHECK(seconds_since(start) >= 0.4);
  CHECK(on.is_empty());
}

TEST_CASE("arguments reach a program on a host as they are", "[cluster][ssh]") {
  if (testing::no_cluster_here()) return;
  Connected on;
  std::string all_bytes;
  for (int byte = 1; byte < 256; ++byte)
    all_bytes += static_cast<char>(byte);
  const std::vector<std::string> words = {"a b",
                                          "",
                                          "'",
                                          "\"",
                                          "\\",
                                          "$(touch /mnt/pwned)",
                                          "`touch /mnt/pwned`",
                                          "-n",
                                          "--",
                                          "*",
                                          "~",
                                          "!!",
                                          "line\nbreak",
                                          "; touch /mnt/pwned",
                                          "#",
                                          "$HOME",
                                          "\t",
                                          "''",
                                          "'\\''",
                                          "a'b\"c$d",
                                          "\r",
                                          "&",
                                          "| cat",
                                          "> /mnt/pwned",
                                          "%s",
                                          all_bytes};
  std::vector<std::string> argv = {"printf", "%s\\0", "--"};
  argv.insert(argv.end(), words.begin(), words.end());
  std::string expected = std::string("--") + '\0';
  for (const std::string& word : words)
    expected += word + '\0';
  CHECK(on.run(argv).out == expected);
  CHECK_FALSE(std::filesystem::exists(on.host().path("/mnt/pwned")));
}

TEST_CASE("10 MiB each way arrive intact, also while the keys are renewed", "[cluster][ssh]") {
  if (testing::no_cluster_here()) return;
  Connected on;
#ifdef DSTRAIN_ASAN
  const bool renew = false;  // libssh2 1.10 keeps 51 bytes for ever each time
#else
  const bool renew = GENERATE(false, true);
#endif
  if (renew) {
    on.host().run("echo RekeyLimit 1M >> /mnt/etc/sshd_config");
    on.host().kill_sshd();
    on.host().start_sshd();
    on.connection = std::move(on.client.connect({on.host().ipv4()}).connections.at(0));
    REQUIRE(on.connection);
  }
  const std::string bytes = noise(10 << 20);
  const auto start = Clock::now();
  const Outcome echoed = on.run({"cat"}, bytes);
  INFO((echoed.end ? echoed.end->why : "no end") << ", " << echoed.out.size() << " bytes");
  CHECK((echoed.out == bytes));
  REQUIRE(echoed.end);
  CHECK(echoed.end->exit_code == 0);
  WARN(fmt::format("10 MiB there and back in {:.2f} s{}", seconds_since(start),
                   renew ? ", keys renewed every MiB" : ""));
}

TEST_CASE("several programs run over one connection, none waiting for another", "[cluster][ssh]") {
  if (testing::no_cluster_here()) return;
  Connected on;
  constexpr size_t kPrograms = 8;
  const std::string bytes = noise(3 << 20);
  std::vector<std::unique_ptr<launcher::ByteStream>> streams;
  std::vector<Outcome> outcomes(kPrograms);
  for (size_t i = 0; i < kPrograms; ++i) {
    streams.push_back(on.client.start(*on.connection, {"cat"}));
    SshClient::record(*streams[i], outcomes[i]);
    streams[i]->write(bytes);
  }
  // The first is never read on the other side: it stands still, the others do not.
  const auto idle = on.client.start(*on.connection, {"sleep", "1000"});
  Outcome stuck;
  SshClient::record(*idle, stuck);
  idle->write(noise(8 << 20));
  for (const auto& stream : streams)
    stream->close_input();
  CHECK(on.client.run_until(
      [&] {
        return std::all_of(outcomes.begin(), outcomes.end(),
                           [](const Outcome& o) { return o.end.has_value(); });
      },
      seconds{60}));
  for (const Outcome& outcome : outcomes)
    CHECK((outcome.out == bytes));
  CHECK_FALSE(stuck.end);
}

TEST_CASE("what is not read waits in bounded space on both sides", "[cluster][ssh]") {
  if (testing::no_cluster_here()) return;
  Connected on;
  // Towards a program that reads nothing: all but the window, and pipes, stays in the queue.
  constexpr size_t kBytes = 64 << 20;
  constexpr size_t kMostOnTheWay = 16 << 20;
  const auto idle = on.client.start(*on.connection, {"sleep", "1000"});
  Outcome outcome;
  SshClient::record(*idle, outcome);
  idle->write(std::string(kBytes, 'x'));
  on.client.run_until([] { return false; }, milliseconds{1500});
  CHECK(idle->queued_bytes() > kBytes - kMostOnTheWay);
  const size_t queued = idle->queued_bytes();
  on.client.run_until([] { return false; }, milliseconds{500});
  CHECK(idle->queued_bytes() == queued);

  // From a program whose output nobody takes: it stands still, once the window is full.
  const auto flood = on.client.start(
      *on.connection, {"sh", "-c", "head -c 67108864 /dev/zero; touch /mnt/flood-is-over"});
  on.client.run_until([] { return false; }, milliseconds{1500});
  CHECK_FALSE(std::filesystem::exists(on.host().path("/mnt/flood-is-over")));
  size_t received = 0;
  bool ended = false;
  flood->listen({.on_data = [&](std::string_view bytes) { received += bytes.size(); },
                 .on_error_data = [](std::string_view) {},
                 .on_closed = [&](const launcher::StreamEnd&) { ended = true; }});
  CHECK(on.client.run_until([&] { return ended; }, seconds{60}));
  CHECK(received == kBytes);
}

TEST_CASE("closing a stream ends the program's input, and the connection continues",
          "[cluster][ssh]") {
  if (testing::no_cluster_here()) return;
  Connected on;
  auto closed = on.client.start(*on.connection, {"cat"});
  Outcome outcome;
  SshClient::record(*closed, outcome);
  closed->close();
  CHECK_FALSE(outcome.end);  // never from within a call
  CHECK(on.client.run_until([&] { return outcome.end.has_value(); }, seconds{5}));
  CHECK(outcome.end->why == "closed by the launcher");
  closed.reset();
  auto dropped = on.client.start(*on.connection, {"cat"});
  dropped.reset();
  CHECK(on.run({"echo", "still here"}).out == "still here\n");
  CHECK(on.is_empty());

  // The stream outlives the handle of its connection, and the connection ends with it.
  auto last = on.client.start(*on.connection, {"cat"});
  on.connection.reset();
  Outcome echoed;
  SshClient::record(*last, echoed);
  last->write("hello");
  CHECK(on.client.run_until([&] { return echoed.out == "hello"; }, seconds{5}));
  last.reset();
  CHECK(on.client.run_until([&] { return on.host().processes().empty(); }, seconds{10}));
}

/// What a stream reports, and when, after `what` was done to the host.
double time_until_told(Connected& on, Outcome& outcome, const std::function<void()>& what) {
  const auto stream = on.client.start(*on.connection, {"cat"});
  SshClient::record(*stream, outcome);
  stream->write("hello");
  REQUIRE(on.client.run_until([&] { return outcome.out == "hello"; }, seconds{10}));
  what();
  const auto start = Clock::now();
  CHECK(on.client.run_until([&] { return outcome.end.has_value(); }, seconds{40}));
  const double took = seconds_since(start);
  REQUIRE(outcome.end);
  CHECK_FALSE(outcome.end->exit_code);
  CHECK(outcome.end->signal == 0);
  // And what is started now fails instead of waiting.
  CHECK_THROWS_WITH(on.client.start(*on.connection, {"true"}), Contains(outcome.end->why));
  return took;
}

TEST_CASE("a host that is cut off is noticed, though nothing is sent to it", "[cluster][ssh]") {
  if (testing::no_cluster_here()) return;
  Connected on(milliseconds{3000});
  const bool unplugged = GENERATE(true, false);
  Outcome outcome;
  const double took = time_until_told(on, outcome, [&] {
    if (unplugged) {
      on.cluster.unplug(on.host());
    } else {
      on.cluster.drop_packets(on.host());
    }
  });
  WARN(fmt::format("{}: \"{}\" after {:.2f} s, with a limit of 3 s",
                   unplugged ? "F4 cable pulled" : "F22 packets dropped", outcome.end->why, took));
  CHECK(took < 12);
  CHECK_THAT(outcome.end->why, Contains("no answer for 3 s") || Contains("no route to host"));
}

TEST_CASE("the end of sshd, or of the host, is noticed at once or at the limit", "[cluster][ssh]") {
  if (testing::no_cluster_here()) return;
  Connected on(milliseconds{3000});
  const bool powered_off = GENERATE(false, true);
  Outcome outcome;
  const double took = time_until_told(on, outcome, [&] {
    if (powered_off) {
      on.cluster.unplug(on.host());  // the kernel would still close its connections
      on.host().power_off();
    } else {
      on.host().kill_sshd();
    }
  });
  WARN(fmt::format("{}: \"{}\" after {:.2f} s", powered_off ? "F4 power off" : "F5 sshd killed",
                   outcome.end->why, took));
  CHECK(took < (powered_off ? 12 : 5));
  if (!powered_off) {
    CHECK_THAT(outcome.end->why, Contains("closed the connection") || Contains("reset by peer"));
    CHECK(on.is_empty());  // "cat" saw the end of its input
  }
}

TEST_CASE("a program's input ends when the launcher's machine is cut off", "[cluster][ssh]") {
  if (testing::no_cluster_here()) return;
  // Seen from the host this is a matter of its sshd's ClientAlive settings, or of the program's
  // own heartbeat; with the former it can be shown without the latter.
  Connected on;
  on.host().run(
      "printf 'ClientAliveInterval 1\\nClientAliveCountMax 2\\n' >> /mnt/etc/sshd_config");
  on.host().kill_sshd();
  on.host().start_sshd();
  on.connection = std::move(on.client.connect({on.host().ipv4()}).connections.at(0));
  REQUIRE(on.connection);
  const auto stream = on.client.start(*on.connection, {"cat"});
  on.cluster.drop_packets(on.host());
  const auto start = Clock::now();
  CHECK(testing::becomes_true([&] { return on.host().processes().empty(); }, seconds{15}));
  WARN(fmt::format("F5 connection cut: the host's program ended after {:.2f} s (ClientAlive 2 s)",
                   seconds_since(start)));
}

TEST_CASE("a file is uploaded whole or not at all", "[cluster][ssh]") {
  if (testing::no_cluster_here()) return;
  Connected on;
  const auto upload = [&](const std::string& content, const std::string& path, int mode) {
    std::optional<std::optional<launcher::HostFailure>> result;
    on.connection->upload(std::make_shared<const std::string>(content), path, mode,
                          [&](std::optional<launcher::HostFailure> f) { result = std::move(f); });
    REQUIRE(on.client.run_until([&] { return result.has_value(); }, seconds{60}));
    return *result;
  };
  const std::string bytes = noise((5 << 20) + 1);
  const std::string awkward = "it's a \"folder\"/$(x) -f\n/-binary";
  CHECK_FALSE(upload(bytes, awkward, 0755));
  CHECK((on.host().read("/mnt/home/" + awkward) == bytes));
  CHECK((std::filesystem::status(on.host().path("/mnt/home/" + awkward)).permissions() ==
         std::filesystem::perms{0755}));
  CHECK_FALSE(upload("", "/mnt/empty", 0600));
  CHECK(on.host().read("/mnt/empty").empty());
  CHECK_FALSE(upload("x", "-dash", 0600));
  CHECK(on.host().read("/mnt/home/-dash") == "x");

  on.host().mount_small_disk("/mnt/small", 1 << 20);
  on.host().write("/mnt/small/old", "old");
  const auto failure = upload(bytes, "/mnt/small/old", 0600);
  REQUIRE(failure);
  CHECK(failure->phase == "copy");
  CHECK_THAT(failure->what,
             Contains("/mnt/small/old could not be written") && Contains("No space left"));
  CHECK(on.host().read("/mnt/small/old") == "old");
  CHECK(on.host().run("ls /mnt/small") == "old\n");

  // Cut in the middle: the receiver sees the end of its input, and too few bytes.
  bool told = false;
  on.connection->upload(std::make_shared<const std::string>(noise(64 << 20)), "/mnt/cut", 0600,
                        [&](const auto& f) { told = f.has_value(); });
  on.client.run_until(
      [&] { return on.host().run("ls /mnt").find("cut.part") != std::string::npos; }, seconds{10});
  on.host().kill_sshd();
  CHECK(on.client.run_until([&] { return told; }, seconds{10}));
  CHECK(on.is_empty());
  CHECK(on.host().run("ls /mnt").find("cut") == std::string::npos);
}

}  // namespace
}  // namespace dstrain
