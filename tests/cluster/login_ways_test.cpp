// Ways to log in that this program's own client has not, and OpenSSH's has: through a jump host,
// with an RSA key, with a certificate. `dstrain launch` takes OpenSSH's where it must, says so in a
// line, and trains to the same losses.
#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "tests/cluster/fleet_run.h"
#include "tests/cluster/skip.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using std::chrono::seconds;
using testing::ClusterHost;
using testing::FleetRun;
using testing::Program;

constexpr seconds kPatience{60};
constexpr const char* kKey = "/mnt/home/.ssh/id_ed25519";
const std::vector<std::string> kSteps = {"--set", "training.steps=10"};

/// Two ranks of this machine, without any SSH.
std::vector<double> losses_of_one_host() {
  const testing::TinyRun alone;
  Program one({testing::dstrain_binary(), "launch", "--num_gpus", "2", alone.path("config.json"),
               kSteps[0], kSteps[1]});
  REQUIRE(one.wait(kPatience) == 0);
  return testing::losses_in(alone.read("run/metrics.jsonl"));
}

/// `reason` is why OpenSSH's client is used; libssh2 alone is refused with `refusal`.
void check_that_it_trains(FleetRun& run, const std::string& reason, const std::string& refusal) {
  const auto strict = run.launch({"--launcher", "libssh2", "--check"});
  REQUIRE(strict->wait(kPatience));
  INFO(strict->err());
  CHECK(strict->wait(seconds{0}) == 3);
  CHECK_THAT(strict->err(), Contains("2 of 2 hosts cannot be used") && Contains(refusal));

  const auto launch = run.launch(kSteps);
  REQUIRE(launch->wait(kPatience));
  INFO(launch->err());
  CHECK(launch->wait(seconds{0}) == 0);
  const std::string line = " and 1 more: logging in with OpenSSH's client, needed for " + reason;
  CHECK_THAT(launch->err(), Contains(line));
  CHECK(launch->err().find("OpenSSH's client") == launch->err().rfind("OpenSSH's client"));
  INFO(run.left());
  CHECK(run.nothing_is_left(seconds{5}));
  const std::vector<double> losses = testing::losses_in(run.tiny().read("run/metrics.jsonl"));
  CHECK(losses.size() == 10);
  CHECK(losses == losses_of_one_host());
}

/// The launcher's machine and these hosts know no way to each other, nor the launcher their names.
void put_behind_w0(FleetRun& run, const std::vector<int>& hosts) {
  ClusterHost& launcher = run.cluster().launcher();
  const auto cut = [](const ClusterHost& from, const ClusterHost& to) {
    from.run(fmt::format("ip route add unreachable {} && ip -6 route add unreachable {}", to.ipv4(),
                         to.ipv6()));
  };
  for (const int host : hosts) {
    cut(launcher, run.host(host));
    cut(run.host(host), launcher);
  }
  launcher.write("/etc/hosts", fmt::format("127.0.0.1 localhost\n{} launcher\n{} w0\n",
                                           launcher.ipv4(), run.host(0).ipv4()));
}

TEST_CASE("hosts behind a jump host train together", "[cluster][launch][openssh][slow]") {
  if (testing::no_cluster_here()) return;
  FleetRun run(3, 1);
  put_behind_w0(run, {1, 2});
  std::ofstream(run.path("hosts")) << "w1 slots=1\nw2 slots=1\n";
  const auto direct = run.launch({"--launcher", "openssh", "--check"});
  REQUIRE(direct->wait(kPatience) == 3);
  CHECK_THAT(direct->err(), Contains("w1  resolve  ssh: Could not resolve hostname w1"));

  run.cluster().launcher().write("/mnt/home/.ssh/config", "Host w1 w2\n  ProxyJump w0\n");
  check_that_it_trains(run, "ProxyJump (/mnt/home/.ssh/config:2)", "ProxyJump applies to host w1");

  const auto check = run.launch({"--launcher", "openssh", "--check"});
  REQUIRE(check->wait(kPatience) == 0);
  CHECK_THAT(check->out(), Contains("rank 0 listens on 10.77.1.2 port ") && Contains("10.77.1.3"));

  // The fault at the jump host is reported, not its consequence.
  run.host(0).write("/mnt/home/.ssh/authorized_keys", "");
  const auto refused = run.launch();
  REQUIRE(refused->wait(kPatience));
  INFO(refused->err());
  CHECK(refused->wait(seconds{0}) == 3);
  CHECK_THAT(refused->err(), Contains("w1  authentication  ssh: root@w0: Permission denied"));
}

TEST_CASE("a jump host that takes few logins at a time lets all in", "[cluster][openssh][slow]") {
  if (testing::no_cluster_here()) return;
  constexpr int kBehind = 12;
  FleetRun run(kBehind + 1, 1);
  std::vector<int> behind;
  std::ofstream hosts(run.path("hosts"));
  for (int i = 1; i <= kBehind; ++i) {
    behind.push_back(i);
    hosts << fmt::format("w{} slots=1\n", i);
  }
  hosts.close();
  put_behind_w0(run, behind);
  run.cluster().launcher().write("/mnt/home/.ssh/config",
                                 "Host w0\n  ProxyJump none\nHost w*\n  ProxyJump w0\n");
  run.host(0).run("sed -i 's/^MaxStartups.*/MaxStartups 9/' /mnt/etc/sshd_config");
  run.host(0).kill_sshd();
  run.host(0).start_sshd();
  const auto check = run.launch({"--launcher", "openssh", "--check"});
  REQUIRE(check->wait(kPatience));
  INFO(check->err());
  CHECK(check->wait(seconds{0}) == 0);
  CHECK_THAT(run.host(0).read("/mnt/sshd.log"), Contains("MaxStartups"));  // it did turn away
}

TEST_CASE("an RSA key lets in", "[cluster][launch][openssh][slow]") {
  if (testing::no_cluster_here()) return;
  FleetRun run(2, 1);
  const ClusterHost& launcher = run.cluster().launcher();
  launcher.run(
      fmt::format("rm {0}* && ssh-keygen -q -t rsa -b 2048 -N '' -f /mnt/home/.ssh/id_rsa", kKey));
  for (int i = 0; i < 2; ++i) {
    run.host(i).write("/mnt/home/.ssh/authorized_keys", launcher.read("/mnt/home/.ssh/id_rsa.pub"));
  }
  check_that_it_trains(run, "an RSA key (libssh2 ", "make an ed25519 key");
}

TEST_CASE("a certificate lets in", "[cluster][launch][openssh][slow]") {
  if (testing::no_cluster_here()) return;
  FleetRun run(2, 1);
  const ClusterHost& launcher = run.cluster().launcher();
  launcher.run(
      "ssh-keygen -q -t ed25519 -N '' -f /mnt/ca && "
      "ssh-keygen -q -s /mnt/ca -I test -n root -V +1h " +
      std::string(kKey) + ".pub");
  for (int i = 0; i < 2; ++i) {
    run.host(i).write("/mnt/home/.ssh/authorized_keys", "");
    run.host(i).write("/mnt/etc/ca.pub", launcher.read("/mnt/ca.pub"));
    run.host(i).run("echo 'TrustedUserCAKeys /mnt/etc/ca.pub' >> /mnt/etc/sshd_config");
    run.host(i).kill_sshd();
    run.host(i).start_sshd();
  }
  check_that_it_trains(run, std::string(kKey) + "-cert.pub", "id_ed25519: not accepted");
}

/// The connection that ssh leaves behind for the next one, as its configuration says.
TEST_CASE("runs share the user's own connections, and leave no rank when the launcher is killed",
          "[cluster][launch][openssh][slow]") {
  if (testing::no_cluster_here()) return;
  FleetRun run(2, 1);
  run.cluster().launcher().write("/mnt/home/.ssh/config",
                                 "Host *\n  ControlMaster auto\n  ControlPersist 60\n"
                                 "  ControlPath /mnt/home/.ssh/%C\n  LocalForward 7777 w0:22\n");
  const std::vector<std::string> flags = {"--launcher", "openssh", "--ssh-port", "2222"};
  const auto first = run.launch({"--check", flags[0], flags[1], flags[2], flags[3]});
  REQUIRE(first->wait(kPatience));
  INFO(first->err());
  CHECK(first->wait(seconds{0}) == 0);
  const auto masters = run.cluster().launcher().processes_named("ssh");
  CHECK(masters.size() == 2);

  const auto second = run.launch(flags);
  REQUIRE(run.tiny().reaches_step(3));
  second->signal(SIGKILL);
  CHECK(second->wait(seconds{5}) == 137);
  const auto only_masters = [&] {
    return run.processes().empty() &&
           run.cluster().launcher().processes_named("ssh").size() == masters.size();
  };
  CHECK(testing::becomes_true(only_masters, seconds{15}));
  INFO(run.left());
  for (const pid_t master : masters) {
    CHECK(testing::is_alive(master));
    kill(master, SIGKILL);
  }
}

TEST_CASE("hosts of which some need OpenSSH's client train with the others",
          "[cluster][launch][openssh][slow]") {
  if (testing::no_cluster_here()) return;
  FleetRun run(2, 1);
  run.cluster().launcher().write("/mnt/home/.ssh/config", "Host w1\n  ProxyJump w0\n");
  // Both ways to send the program, too.
  const auto launch =
      run.launch({"--agent-path", "/mnt/dstrain", "--copy-binary", kSteps[0], kSteps[1]});
  REQUIRE(launch->wait(kPatience));
  INFO(launch->err());
  CHECK(launch->wait(seconds{0}) == 0);
  CHECK_THAT(launch->err(),
             Contains("w1: logging in with OpenSSH's client, needed for ProxyJump") &&
                 Contains("w0: sending this build") && Contains("w1: sending this build"));
  CHECK(run.nothing_is_left(seconds{5}));

  // Where there is no such client, what was said without it is said, and what to install.
  const auto without = run.launch({"--check"}, {{"PATH", "/nowhere"}});
  REQUIRE(without->wait(kPatience));
  INFO(without->err());
  CHECK(without->wait(seconds{0}) == 3);
  CHECK_THAT(without->err(), Contains("1 of 2 hosts cannot be used") &&
                                 Contains("ProxyJump applies to host w1") &&
                                 Contains("openssh-client"));
}

}  // namespace
}  // namespace dstrain
