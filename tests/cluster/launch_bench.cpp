// How long a job takes to start over SSH, on a cluster of namespaces on this machine: logging in,
// agents, and the whole of `dstrain launch` to its first step; beside it OpenSSH's client, as
// pdsh and ssh loops use it. Run by scripts/bench_launch.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "launcher/agent/agent_host.h"
#include "tests/cluster/cluster.h"
#include "tests/cluster/ssh_client.h"
#include "tests/failure/tiny_run.h"

namespace dstrain {
namespace {

using std::chrono::seconds;
using testing::Cluster;
using testing::SshClient;

double timed(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void report(const std::string& what, const std::vector<double>& times) {
  fmt::print("{:<52} {:6.2f} s   (of {}: {:.2f} to {:.2f})\n", what, median(times), times.size(),
             *std::min_element(times.begin(), times.end()),
             *std::max_element(times.begin(), times.end()));
}

[[noreturn]] void give_up(const std::string& why) {
  fmt::print(stderr, "bench_launch: {}\n", why);
  std::exit(1);
}

struct SshTimes {
  double login = 0;
  double agents = 0;  ///< since the login
};

/// Logs in to all hosts and greets an agent on each.
SshTimes start_agents(Cluster& cluster) {
  SshClient client(cluster);
  std::vector<std::string> hosts;
  for (int i = 0; i < cluster.size(); ++i)
    hosts.push_back(cluster.host(i).ipv4());
  SshTimes times;
  launcher::SshConnector::Connected connected;
  times.login = timed([&] { connected = client.connect(hosts); });
  if (!connected.failures.empty()) give_up(to_table(connected.failures, hosts.size()));
  std::vector<std::unique_ptr<launcher::AgentHost>> agents(hosts.size());
  size_t greeted = 0;
  times.agents = timed([&] {
    for (size_t i = 0; i < hosts.size(); ++i) {
      connected.connections[i]->start({testing::dstrain_binary(), "agent"}, [&, i](auto started) {
        if (started.failure) give_up(started.failure->what);
        agents[i] = std::make_unique<launcher::AgentHost>(client.loop(), hosts[i],
                                                          std::move(started.stream));
        agents[i]->greet([&](const auto& failure) {
          if (failure) give_up(failure->why);
          ++greeted;
        });
      });
    }
    if (!client.run_until([&] { return greeted == hosts.size(); }, seconds{120})) {
      give_up("not all agents said hello");
    }
  });
  return times;
}

/// One ssh(1) a host, all at once.
double run_openssh(const Cluster& cluster) {
  std::string script;
  for (int i = 0; i < cluster.size(); ++i)
    script += fmt::format("ssh -o BatchMode=yes w{} true & ", i);
  std::optional<int> code;
  const double time = timed([&] {
    const auto shell = cluster.launch({"/bin/sh", "-c", script + "wait"});
    code = shell->wait(seconds{120});
  });
  if (code != 0) give_up("ssh(1) failed");
  return time;
}

/// Since the command line of `dstrain launch`.
struct LaunchTimes {
  double checked = 0;     ///< all hosts logged in to and checked: the ranks' logs are there
  double formed = 0;      ///< all ranks started, met, and their groups formed: rank 0 says so
  double first_step = 0;  ///< its line in metrics.jsonl
};

/// Runs one step, a rank a host. Empty if it failed.
std::optional<LaunchTimes> launch(const Cluster& cluster,
                                  const testing::TinyRun& run,
                                  const std::string& launcher) {
  std::ofstream hostfile(run.path("hosts"));
  for (int i = 0; i < cluster.size(); ++i)
    hostfile << fmt::format("w{} slots=1\n", i);
  hostfile.close();
  std::filesystem::remove_all(run.path("run"));
  LaunchTimes times;
  const auto start = std::chrono::steady_clock::now();
  const auto program = cluster.launch({testing::dstrain_binary(), "launch", "--hostfile",
                                       run.path("hosts"), run.path("config.json"), "--set",
                                       "training.steps=1", "--launcher", launcher});
  const auto note = [&](double& time, bool happened) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    if (time == 0 && happened) time = passed.count();
    if (passed > seconds{300}) give_up("dstrain launch does not end: " + program->err());
  };
  const std::string formed = fmt::format(" {} ranks, ", cluster.size());
  bool ended = false;
  while (!ended) {
    ended = program->wait(std::chrono::milliseconds{1}).has_value();
    note(times.checked, std::filesystem::exists(run.path("run/log/rank-00000.log")));
    note(times.formed, times.checked > 0 && program->err().find(formed) != std::string::npos);
    note(times.first_step, times.formed > 0 && run.steps() >= 1);
  }
  if (program->wait(seconds{0}) == 0 && times.first_step > 0) return times;
  fmt::print("dstrain launch failed:\n{}", program->err());
  return std::nullopt;
}

int run(int hosts, int rounds) {
  if (const auto reason = testing::why_no_cluster()) give_up(*reason);
  std::unique_ptr<Cluster> cluster;
  const double up = timed([&] { cluster = std::make_unique<Cluster>(hosts); });
  fmt::print("{} hosts (namespaces of this machine, each with sshd), up in {:.2f} s\n", hosts, up);
  std::vector<double> logins, agents, openssh;
  struct Launches {
    std::string launcher;
    std::vector<double> checked{}, formed{}, first_step{};
  };
  std::vector<Launches> launches = {{"libssh2"}, {"openssh"}};
  const testing::TinyRun tiny;
  for (int round = 0; round < rounds; ++round) {
    const SshTimes times = start_agents(*cluster);
    logins.push_back(times.login);
    agents.push_back(times.agents);
    openssh.push_back(run_openssh(*cluster));
    for (Launches& each : launches) {
      const auto took = launch(*cluster, tiny, each.launcher);
      if (!took) return 1;
      each.checked.push_back(took->checked);
      each.formed.push_back(took->formed);
      each.first_step.push_back(took->first_step);
    }
  }
  report("logged in to all of them", logins);
  report("an agent on each, from start to hello", agents);
  report("ssh(1) host true, all at once", openssh);
  for (const Launches& each : launches) {
    report("dstrain launch --launcher " + each.launcher + ": hosts checked", each.checked);
    report("  … all ranks there, groups formed", each.formed);
    report("  … the first step done", each.first_step);
  }
  return 0;
}

}  // namespace
}  // namespace dstrain

int main(int argc, char** argv) {
  const int hosts = argc > 1 ? std::atoi(argv[1]) : 32;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  if (hosts < 1 || hosts > 200 || rounds < 1) {
    fmt::print(stderr, "usage: launch_bench [HOSTS, 1 to 200] [ROUNDS]\n");
    return 2;
  }
  return dstrain::run(hosts, rounds);
}
