// The harness itself: what its hosts are, what can be done to them, and that nothing is left.
#include "tests/cluster/cluster.h"

#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <sys/wait.h>

#include "tests/cluster/skip.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::becomes_true;
using testing::Cluster;

TEST_CASE("a cluster's hosts are machines of their own", "[cluster]") {
  if (testing::no_cluster_here()) return;
  Cluster cluster(2);
  CHECK(cluster.host(0).run("hostname; hostname -I || true; echo $$; pwd") !=
        cluster.host(1).run("hostname; hostname -I || true; echo $$; pwd"));
  CHECK(cluster.host(1).run("uname -n") == "w1\n");
  CHECK(cluster.host(0).host_key() != cluster.host(1).host_key());
  cluster.host(0).write("/mnt/mine", "x");
  CHECK(cluster.host(0).run("cat /mnt/mine") == "x");
  CHECK(cluster.host(1).run("ls /mnt").find("mine") == std::string::npos);
  CHECK(cluster.host(0).processes().empty());

  // OpenSSH's own client finds its way, by name, both protocols and both ports.
  for (const char* const target : {"w0", "w0-v6", "-p 2222 w0"}) {
    auto ssh =
        cluster.launch({"/bin/sh", "-c", fmt::format("ssh -o BatchMode=yes {} uname -n", target)});
    INFO(target);
    CHECK(ssh->wait(seconds{20}) == 0);
    INFO(ssh->err());
    CHECK(ssh->out() == "w0\n");
  }
}

TEST_CASE("a cluster's hosts can be cut off, starved and ended", "[cluster]") {
  if (testing::no_cluster_here()) return;
  Cluster cluster(2);
  const auto reaches = [&](int host) {
    auto ping = cluster.launch(
        {"/bin/bash", "-c",
         fmt::format("exec 3<>/dev/tcp/{}/22 && head -c 4 <&3", cluster.host(host).ipv4())});
    return ping->wait(milliseconds{1000}) == 0;
  };
  CHECK(reaches(0));
  cluster.unplug(cluster.host(0));
  CHECK_FALSE(reaches(0));
  CHECK(reaches(1));
  cluster.reconnect(cluster.host(0));
  CHECK(becomes_true([&] { return reaches(0); }, seconds{10}));
  cluster.drop_packets(cluster.host(0));
  CHECK_FALSE(reaches(0));
  CHECK_THAT(cluster.host(0).run("ip link show eth0"), Contains("LOWER_UP"));
  cluster.reconnect(cluster.host(0));
  CHECK(becomes_true([&] { return reaches(0); }, seconds{10}));

  cluster.host(1).kill_sshd();
  CHECK_FALSE(reaches(1));
  cluster.host(1).start_sshd();
  CHECK(reaches(1));
  const std::string key = cluster.host(1).host_key();
  cluster.host(1).change_host_key();
  CHECK(cluster.host(1).host_key() != key);

  cluster.host(0).mount_small_disk("/mnt/small", 1 << 20);
  CHECK_THROWS_WITH(cluster.host(0).run("head -c 2000000 /dev/zero > /mnt/small/big"),
                    Contains("No space left"));

  cluster.host(0).run("sleep 1000 >/dev/null 2>&1 &");
  REQUIRE(cluster.host(0).processes().size() == 1);
  const auto sleeper = cluster.host(0).processes().front();
  CHECK(sleeper.command == "sleep 1000");
  CHECK(sleeper.pid != sleeper.pid_on_host);
  cluster.host(0).power_off();
  CHECK(becomes_true([&] { return !testing::is_alive(sleeper.pid); }, seconds{5}));
}

TEST_CASE("nothing is left of a cluster whose test was killed", "[cluster]") {
  if (testing::no_cluster_here()) return;
  const testing::TemporaryFolder folder;
  const pid_t test = fork();
  if (test == 0) {
    Cluster cluster(3);
    std::ofstream pids(folder.path() / "pids");
    for (int i = 0; i < cluster.size(); ++i) {
      cluster.host(i).run("sleep 1000 >/dev/null 2>&1 &");
      pids << cluster.host(i).holder().pid() << ' ' << cluster.host(i).processes().at(0).pid << ' ';
    }
    pids << cluster.launcher().holder().pid() << '\n';
    pids.close();
    pause();
  }
  REQUIRE(becomes_true([&] { return folder.read("pids").ends_with('\n'); }, seconds{60}));
  std::istringstream list(folder.read("pids"));
  std::vector<pid_t> pids;
  for (pid_t pid = 0; list >> pid;)
    pids.push_back(pid);
  REQUIRE(pids.size() == 7);
  kill(test, SIGKILL);
  waitpid(test, nullptr, 0);
  for (const pid_t pid : pids)
    CHECK(becomes_true([&] { return !testing::is_alive(pid); }, seconds{10}));
}

TEST_CASE("32 hosts are up in seconds", "[cluster][slow]") {
  if (testing::no_cluster_here()) return;
  const auto start = std::chrono::steady_clock::now();
  const Cluster cluster(32);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  WARN(fmt::format("32 hosts with sshd up in {:.2f} s", took.count()));
  CHECK(took < seconds{60});
}

}  // namespace
}  // namespace dstrain
