// FleetRun: `dstrain launch` of a tiny model over the hosts of a Cluster.
#pragma once

#include <chrono>
#include <csignal>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/cluster/cluster.h"
#include "tests/failure/tiny_run.h"

namespace dstrain::testing {

class FleetRun {
 public:
  FleetRun(int hosts, int slots) : cluster_(hosts) {
    std::ofstream file(tiny_.path("hosts"));
    for (int i = 0; i < hosts; ++i)
      file << fmt::format("w{} slots={}\n", i, slots);
  }

  [[nodiscard]] Cluster& cluster() { return cluster_; }
  [[nodiscard]] ClusterHost& host(int index) { return cluster_.host(index); }
  [[nodiscard]] TinyRun& tiny() { return tiny_; }
  [[nodiscard]] std::string path(const std::string& name) const { return tiny_.path(name); }

  [[nodiscard]] std::vector<std::string> arguments(
      const std::vector<std::string>& more = {}) const {
    std::vector<std::string> argv = {dstrain_binary(), "launch", "--hostfile", path("hosts"),
                                     path("config.json")};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }
  std::unique_ptr<Program> launch(const std::vector<std::string>& more = {},
                                  const Program::Environment& environment = {}) {
    return cluster_.launch(arguments(more), environment);
  }

  /// The agents, ranks and what they started, on all hosts. sshd's processes of a session are left
  /// out: on a host that is cut off they stay until the administrator's ClientAliveInterval, if
  /// there is one.
  [[nodiscard]] std::vector<HostProcess> processes() {
    std::vector<HostProcess> all;
    for (int i = 0; i < cluster_.size(); ++i) {
      for (HostProcess& process : host(i).processes()) {
        if (!process.command.starts_with("sshd: ")) all.push_back(std::move(process));
      }
    }
    return all;
  }
  /// The processes of ranks on one host.
  [[nodiscard]] std::vector<HostProcess> ranks_on(int index) {
    std::vector<HostProcess> ranks = host(index).processes();
    std::erase_if(ranks, [](const HostProcess& process) {
      return process.command.find("dstrain train") == std::string::npos;
    });
    return ranks;
  }
  [[nodiscard]] HostProcess agent_on(int index) {
    for (HostProcess& process : host(index).processes()) {
      if (process.command.ends_with("dstrain agent")) return process;
    }
    throw std::runtime_error("no agent on " + host(index).name());
  }
  /// Whether no process is left, not even an ssh on the launcher's machine.
  [[nodiscard]] bool nothing_is_left(std::chrono::milliseconds patience) {
    return becomes_true(
        [&] { return processes().empty() && cluster_.launcher().processes_named("ssh").empty(); },
        patience);
  }
  [[nodiscard]] std::string left() {
    std::string text;
    for (const HostProcess& process : processes())
      text += process.command + "\n";
    for (const pid_t pid : cluster_.launcher().processes_named("ssh"))
      text += fmt::format("ssh, pid {}, on the launcher's machine\n", pid);
    return text;
  }

 private:
  TinyRun tiny_;
  Cluster cluster_;
};

/// The losses of a run, as metrics.jsonl has them.
inline std::vector<double> losses_in(const std::string& metrics) {
  std::vector<double> losses;
  std::istringstream lines(metrics);
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("loss")) losses.push_back(json["loss"].get<double>());
  }
  return losses;
}

}  // namespace dstrain::testing
