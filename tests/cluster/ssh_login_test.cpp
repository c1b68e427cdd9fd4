// Logging in to real sshds: what lets in, and what each way of being kept out is told as.
#include <chrono>
#include <filesystem>
#include <fstream>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/cluster/skip.h"
#include "tests/cluster/ssh_client.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Cluster;
using testing::SshClient;

namespace fs = std::filesystem;

class Stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// The one failure of one host.
launcher::HostFailure failure_of(SshClient& client, const std::string& host) {
  const auto connected = client.connect({host});
  REQUIRE(connected.failures.size() == 1);
  const launcher::HostFailure& failure = connected.failures.front();
  UNSCOPED_INFO(failure.phase << ": " << failure.what << " -> " << failure.fix);
  CHECK(connected.connections.at(0) == nullptr);
  CHECK(failure.host == host);
  return failure;
}

bool logs_in(SshClient& client, const std::string& host) {
  const auto connected = client.connect({host});
  for (const auto& failure : connected.failures)
    UNSCOPED_INFO(failure.phase << ": " << failure.what << " -> " << failure.fix);
  if (!connected.connections.at(0)) return false;
  return client.run(*connected.connections[0], {"uname", "-n"}).out == "w0\n";
}

TEST_CASE("a key file lets in, by IPv4, IPv6 and another port", "[cluster][ssh]") {
  if (testing::no_cluster_here()) return;
  Cluster cluster(1);
  SshClient client(cluster);
  const testing::ClusterHost& host = cluster.host(0);
  CHECK(logs_in(client, host.ipv4()));
  CHECK(logs_in(client, host.ipv6()));
  CHECK(logs_in(client, host.ipv4() + ":2222"));
  CHECK(logs_in(client, fmt::format("root@[{}]:2222", host.ipv6())));
  cluster.launcher().write("/mnt/home/.ssh/config",
                           fmt::format("Host alias\n HostName {}\n Port 2222\n", host.ipv4()));
  CHECK(logs_in(client, "alias"));
}

/// ssh-agent with the launcher's key, which has no file any more.
class Agent {
 public:
  Agent(SshClient& client, bool with_key)
      : socket_((folder_.path() / "agent").string()),
        program_({"/usr/bin/ssh-agent", "-D", "-a", socket_}) {
    testing::becomes_true([&] { return listens(); }, seconds{10});
    const std::string key = client.home() + "/.ssh/id_ed25519";
    if (with_key) testing::run_tool({"env", "SSH_AUTH_SOCK=" + socket_, "ssh-add", "-q", key});
    fs::rename(key, key + ".away");
    client.use_agent(socket_);
  }
  [[nodiscard]] const testing::Program& program() const { return program_; }

 private:
  /// The socket's file is there a moment before anybody can connect to it.
  [[nodiscard]] bool listens() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socket_.copy(address.sun_path, sizeof address.sun_path - 1);
    const int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool connected =
        connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    close(descriptor);
    return connected;
  }

  testing::TemporaryFolder folder_;
  std::string socket_;
  testing::Program program_;
};

TEST_CASE("a key of the agent lets in", "[cluster][ssh]") {
  if (testing::no_cluster_here()) return;
  Cluster cluster(1);
  SshClient client(cluster);
  const std::string type = GENERATE("ed25519", "ecdsa");
  const std::string key = client.home() + "/.ssh/id_ed25519";
  if (type == "ecdsa") {
    fs::remove(key);
    fs::remove(key + ".pub");
    testing::run_tool({"ssh-keygen", "-q", "-t", type, "-N", "", "-f", key});
    cluster.host(0).write("/mnt/home/.ssh/authorized_keys",
                          cluster.launcher().read("/mnt/home/.ssh/id_ed25519.pub"));
  }
  const Agent agent(client, true);
  CHECK(logs_in(client, cluster.host(0).ipv4()));
}

TEST_CASE("an agent that does not answer is given up, and a file is tried", "[cluster][ssh]") {
  if (testing::no_cluster_here()) return;
  Cluster cluster(1);
  SshClient client(cluster);
  const Agent agent(client, false);
  agent.program().signal(SIGSTOP);
  const Stopwatch watch;
  const auto failure = failure_of(client, cluster.host(0).ipv4());
  CHECK(failure.phase == "authentication");
  CHECK_THAT(failure.what, Contains("agent") && Contains("does not answer"));
  CHECK(watch.seconds() < 15);
  const std::string key = client.home() + "/.ssh/id_ed25519";
  fs::rename(key + ".away", key);
  CHECK(logs_in(client, cluster.host(0).ipv4()));
  agent.program().signal(SIGCONT);
}

TEST_CASE("a login that no key opens says what was tried, and how to help it", "[cluster][ssh]") {
  if (testing::no_cluster_here()) return;
  Cluster cluster(1);
  SshClient client(cluster);
  const std::string key = client.home() + "/.ssh/id_ed25519";
  const std::string host = cluster.host(0).ipv4();
  const auto make_key = [&](const std::vector<std::string>& how) {
    fs::remove(key);
    fs::remove(key + ".pub");
    std::vector<std::string> argv = {"ssh-keygen", "-q", "-f", key};
    argv.insert(argv.end(), how.begin(), how.end());
    testing::run_tool(argv);
  };
  make_key({"-t", "ed25519", "-N", ""});
  auto failure = failure_of(client, host);
  CHECK(failure.phase == "authentication");
  CHECK_THAT(failure.what, Contains("user root") && Contains("id_ed25519: not accepted") &&
                               Contains("no agent (SSH_AUTH_SOCK is not set)"));
  CHECK_THAT(failure.fix, Contains("ssh-copy-id -p 22 'root@" + host + "'"));

  make_key({"-t", "ed25519", "-N", "secret"});
  failure = failure_of(client, host);
  CHECK_THAT(failure.what, Contains("id_ed25519 has a passphrase"));
  CHECK_THAT(failure.fix, Contains("ssh-add"));

  make_key({"-t", "rsa", "-m", "PEM", "-N", "secret"});
  CHECK_THAT(failure_of(client, host).what, Contains("id_ed25519 has a passphrase"));

  make_key({"-t", "rsa", "-N", ""});
  cluster.host(0).write("/mnt/home/.ssh/authorized_keys",
                        cluster.launcher().read("/mnt/home/.ssh/id_ed25519.pub"));
  failure = failure_of(client, host);
  CHECK_THAT(failure.fix, Contains("ed25519"));

  fs::remove(key);
  failure = failure_of(client, host);
  CHECK_THAT(failure.what, Contains("no key file"));
}

TEST_CASE("an unknown host key is refused with its fingerprint and the command to accept it",
          "[cluster][ssh]") {
  if (testing::no_cluster_here()) return;
  Cluster cluster(1);
  SshClient client(cluster);
  const std::string host = cluster.host(0).ipv4();
  const std::string known_hosts = client.home() + "/.ssh/known_hosts";
  fs::remove(known_hosts);
  const std::string fingerprint =
      cluster.host(0).run("ssh-keygen -lf /mnt/etc/ssh_host_ed25519_key.pub | cut -d' ' -f2");
  const Stopwatch watch;
  const auto failure = failure_of(client, host);
  WARN(fmt::format("F17 unknown host key: refused in {:.2f} s", watch.seconds()));
  CHECK(watch.seconds() < 5);
  CHECK(failure.phase == "host key");
  CHECK_THAT(failure.what,
             Contains("ssh-ed25519 " + fingerprint.substr(0, fingerprint.size() - 1)));
  CHECK_THAT(failure.fix, Contains("--accept-new-host-keys") &&
                              Contains("ssh-keyscan '" + host + "' >> " + known_hosts));
  CHECK_FALSE(fs::exists(known_hosts));

  client.options().accept_new_host_keys = true;
  CHECK(logs_in(client, host));
  client.options().accept_new_host_keys = false;
  CHECK(logs_in(client, host));  // known from then on
  CHECK(cluster.launcher().read("/mnt/home/.ssh/known_hosts") ==
        fmt::format("{} {}\n", host, cluster.host(0).host_key()));
}

TEST_CASE("a changed host key is refused even where new ones are accepted", "[cluster][ssh]") {
  if (testing::no_cluster_here()) return;
  Cluster cluster(1);
  SshClient client(cluster);
  const std::string host = cluster.host(0).ipv4();
  cluster.host(0).change_host_key();
  client.options().accept_new_host_keys = true;
  const std::string before = cluster.launcher().read("/mnt/home/.ssh/known_hosts");
  const Stopwatch watch;
  const auto failure = failure_of(client, host);
  WARN(fmt::format("F18 changed host key: refused in {:.2f} s", watch.seconds()));
  CHECK(failure.phase == "host key");
  CHECK_THAT(failure.what, Contains("HAS CHANGED") && Contains("/.ssh/known_hosts:3 has another"));
  CHECK_THAT(failure.fix, Contains("ssh-keygen -R '" + host + "' -f '" + client.home()));
  CHECK(cluster.launcher().read("/mnt/home/.ssh/known_hosts") == before);
}

TEST_CASE("each way of not being there has its own sentence", "[cluster][ssh]") {
  if (testing::no_cluster_here()) return;
  Cluster cluster(2);
  SshClient client(cluster);
  client.options().deadline = milliseconds{4000};

  auto failure = failure_of(client, "no-such-host.invalid");
  CHECK(failure.phase == "resolve");
  CHECK_THAT(failure.what, Contains("no-such-host.invalid"));

  failure = failure_of(client, cluster.host(0).ipv4() + ":2223");
  CHECK(failure.phase == "connect");
  CHECK_THAT(failure.what, Contains("port 2223: Connection refused"));

  failure = failure_of(client, "192.0.2.1");
  CHECK(failure.phase == "connect");
  CHECK_THAT(failure.what, Contains("Network is unreachable"));

  const Stopwatch watch;
  failure = failure_of(client, "10.77.9.9");
  CHECK(failure.phase == "connect");
  CHECK_THAT(failure.what, Contains("No route to host") || Contains("does not answer within 4 s"));
  CHECK(watch.seconds() < 10);

  cluster.drop_packets(cluster.host(1));
  failure = failure_of(client, cluster.host(1).ipv4());
  CHECK(failure.phase == "connect");

  failure = failure_of(client, "x:y:z w0");
  CHECK(failure.phase == "configuration");
  cluster.launcher().write("/mnt/home/.ssh/config", "Host w0\n ProxyJump bastion\n");
  failure = failure_of(client, "w0");
  CHECK(failure.phase == "configuration");
  CHECK_THAT(failure.what, Contains("/.ssh/config:2: ProxyJump applies to host w0"));
}

TEST_CASE("a server that takes the connection and says nothing is given up at the deadline",
          "[cluster][ssh]") {
  if (testing::no_cluster_here()) return;
  Cluster cluster(1);
  SshClient client(cluster);
  client.options().deadline = milliseconds{2000};
  asio::ip::tcp::acceptor silent(client.loop(), {asio::ip::address_v4::loopback(), 0});
  const auto port = silent.local_endpoint().port();
  Stopwatch watch;
  auto failure = failure_of(client, fmt::format("127.0.0.1:{}", port));
  CHECK(watch.seconds() >= 1.9);
  CHECK(watch.seconds() < 10);
  CHECK(failure.phase == "greeting");
  CHECK_THAT(failure.what, Contains("sent nothing for 2 s"));

  // One that speaks something else, and one that hangs up.
  for (const std::string words : {"HTTP/1.1 400 Bad Request\r\n\r\n", ""}) {
    asio::ip::tcp::acceptor other(client.loop(), {asio::ip::address_v4::loopback(), 0});
    other.async_accept([&](const asio::error_code& error, asio::ip::tcp::socket peer) {
      if (!error) asio::write(peer, asio::buffer(words));
    });
    failure = failure_of(client, fmt::format("127.0.0.1:{}", other.local_endpoint().port()));
    CHECK(failure.phase == "greeting");
  }
}

TEST_CASE("the failures of all hosts are reported in one table", "[cluster][ssh]") {
  if (testing::no_cluster_here()) return;
  Cluster cluster(4);
  SshClient client(cluster);
  cluster.host(1).change_host_key();
  cluster.host(2).write("/mnt/home/.ssh/authorized_keys", "");
  cluster.host(3).kill_sshd();
  std::vector<std::string> hosts;
  for (int i = 0; i < 4; ++i)
    hosts.push_back(cluster.host(i).ipv4());
  const Stopwatch watch;
  const auto connected = client.connect(hosts);
  WARN(fmt::format("F19 three kinds of failures: told in {:.2f} s", watch.seconds()));
  CHECK(connected.connections[0]);
  REQUIRE(connected.failures.size() == 3);
  CHECK(connected.failures[0].phase == "host key");
  CHECK(connected.failures[1].phase == "authentication");
  CHECK(connected.failures[2].phase == "connect");
  const std::string table = to_table(connected.failures, hosts.size());
  INFO(table);
  CHECK_THAT(table, Contains("3 of 4 hosts cannot be used:\n  10.77.1.2  host key "));
}

TEST_CASE("32 hosts are logged in to at once", "[cluster][ssh][slow]") {
  if (testing::no_cluster_here()) return;
  Cluster cluster(32);
  SshClient client(cluster);
  std::vector<std::string> hosts;
  for (int i = 0; i < cluster.size(); ++i)
    hosts.push_back(cluster.host(i).ipv4());
  const Stopwatch watch;
  const auto connected = client.connect(hosts);
  const double login = watch.seconds();
  CHECK(connected.failures.empty());
  std::vector<std::unique_ptr<launcher::ByteStream>> streams;
  std::vector<testing::Outcome> outcomes(hosts.size());
  for (size_t i = 0; i < hosts.size(); ++i) {
    REQUIRE(connected.connections[i]);
    connected.connections[i]->start({"uname", "-n"}, [&, i](auto started) {
      REQUIRE(started.stream);
      SshClient::record(*started.stream, outcomes[i]);
      streams.push_back(std::move(started.stream));
    });
  }
  const auto all_ended = [&] {
    return std::all_of(outcomes.begin(), outcomes.end(),
                       [](const auto& outcome) { return outcome.end.has_value(); });
  };
  CHECK(client.run_until(all_ended, seconds{60}));
  for (size_t i = 0; i < hosts.size(); ++i)
    CHECK(outcomes[i].out == fmt::format("w{}\n", i));
  WARN(fmt::format("32 hosts: logged in after {:.2f} s, a program run on each after {:.2f} s",
                   login, watch.seconds()));
  CHECK(watch.seconds() < 60);
}

}  // namespace
}  // namespace dstrain
