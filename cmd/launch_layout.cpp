#include "cmd/launch_layout.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "cmd/job_secret.h"
#include "cmd/rank_env.h"
#include "launcher/environment.h"
#include "launcher/local_host.h"

namespace dstrain {
namespace {

using launcher::Host;

/// Of a collective, on the ranks: beyond what the launcher takes for a hang, since it knows better
/// who keeps whom waiting. For the case that the launcher sees nothing.
int collective_timeout_s(const LaunchFlags& flags) {
  constexpr int kHour = 3600;
  return std::max(kHour, 2 * flags.step_timeout_seconds);
}

/// Shares the cores of each machine out among all ranks that run there, in their order.
class CoreShares {
 public:
  CoreShares(const std::vector<Host>& hosts, const HostAccess& access) {
    for (const Host& host : hosts) {
      const Machine machine = access.machine_of(host.name);
      counts_[machine.id] += static_cast<int>(host.slots.size());
      if (counts_[machine.id] > static_cast<int>(machine.cores.size())) {
        spdlog::warn("{}: ranks={} cores={}: ranks will take turns on the cores", host.name,
                     counts_[machine.id], machine.cores.size());
      }
    }
  }
  std::vector<int> next(const Machine& machine) {
    return launcher::share_of_cores(machine.cores, given_[machine.id]++, counts_.at(machine.id));
  }

 private:
  std::map<std::string, int> counts_;  // of ranks, by machine
  std::map<std::string, int> given_;
};

std::optional<std::string> own_variable(const std::string& name) {
  return process_environment(name.c_str());
}

/// What NCCL and Gloo's own discovery go by; Gloo's ranks are told their address besides.
launcher::Variables interface_variables(const LaunchFlags& flags) {
  if (flags.interface.empty()) return {};
  return {{"NCCL_SOCKET_IFNAME", flags.interface}, {"GLOO_SOCKET_IFNAME", flags.interface}};
}

void append(launcher::Variables& variables, const launcher::Variables& more) {
  variables.insert(variables.end(), more.begin(), more.end());  // the last of a name counts
}

}  // namespace

int count_ranks(const std::vector<Host>& hosts) {
  int ranks = 0;
  for (const Host& host : hosts)
    ranks += static_cast<int>(host.slots.size());
  return ranks;
}

launcher::Job make_job(const std::vector<Host>& hosts,
                       const Master& master,
                       const RunFlags& run,
                       const LaunchFlags& flags,
                       const HostAccess& access) {
  CoreShares shares(hosts, access);
  const launcher::Variables asked = launcher::asked_variables(flags.environment, own_variable);
  const launcher::Variables passed = launcher::passed_variables(launcher::own_variables());
  std::vector<std::string> argv = {"dstrain", "train"};
  const std::vector<std::string> run_arguments = to_arguments(run);
  argv.insert(argv.end(), run_arguments.begin(), run_arguments.end());

  RankEnv env;
  env.world_size = count_ranks(hosts);
  env.cross_size = static_cast<int>(hosts.size());
  env.master_address = master.address;
  env.master_port = master.port;
  env.token = make_job_secret();
  env.progress = isatty(STDERR_FILENO) == 1 ? Progress::kTerminal : Progress::kLines;
  env.has_lifeline = true;
  env.collective_timeout_s = collective_timeout_s(flags);

  launcher::Job job;
  for (const Host& host : hosts) {
    const Machine machine = access.machine_of(host.name);
    const auto own_address = master.own_addresses.find(host.name);
    env.own_address = own_address == master.own_addresses.end() ? "" : own_address->second;
    env.local_size = static_cast<int>(host.slots.size());
    for (env.local_rank = 0; env.local_rank < env.local_size; ++env.local_rank) {
      env.listen_address = env.rank == 0 && master.is_own_address ? master.address : "";
      const std::vector<int> share = shares.next(machine);
      env.threads = std::max(1, static_cast<int>(share.size()));
      launcher::Variables variables;
      if (!machine.inherits_environment) variables = passed;
      append(variables, interface_variables(flags));
      append(variables, asked);
      append(variables, to_env(env));
      job.processes.push_back(
          {.host = host.name,
           .rank = env.rank,
           .local_rank = env.local_rank,
           .executable = "/proc/self/exe",  // the same build, also if replaced
           .argv = argv,
           .environment = std::move(variables),
           // The cores are shared out here; nothing else may bind threads.
           .unset = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"},
           .cores = share,
           .working_folder = std::filesystem::current_path()});
      ++env.rank;
    }
    ++env.cross_rank;
  }
  return job;
}

}  // namespace dstrain
