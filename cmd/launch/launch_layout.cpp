#include "cmd/launch/launch_layout.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "cmd/launch/job_device.h"
#include "cmd/launch/job_secret.h"
#include "cmd/rank/rank_env.h"
#include "cmd/rank/rank_threads.h"
#include "engine/base/amount_text.h"
#include "launcher/hosts/environment.h"
#include "launcher/hosts/local_host.h"
#include "launcher/process/errors.h"

namespace dstrain {
namespace {

using launcher::Host;

/// The ranks' deadline for a collective. It is longer than what the launcher takes for a hang,
/// since the launcher knows better who keeps whom waiting, and serves where the launcher sees
/// nothing.
int collective_timeout_s(const LaunchFlags& flags) {
  constexpr int kHour = 3600;
  return std::max({kHour, 2 * flags.step_timeout_seconds, 2 * flags.save_timeout_seconds});
}

/// Shares the cores of each machine out among all ranks that run there, in their order.
class CoreShares {
 public:
  struct Share {
    int threads = 1;
    std::vector<int> cores{};  ///< it runs on these; empty: on any
  };

  /// `threads` is the number for each rank, where the user gave one.
  CoreShares(const std::vector<Host>& hosts, const HostAccess& access, std::optional<int> threads)
      : threads_(threads) {
    for (const Host& host : hosts) {
      const Machine machine = access.machine_of(host.name);
      const int ranks = counts_[machine.id] += static_cast<int>(host.slots.size());
      if (ranks * threads_.value_or(1) > machine.num_usable_cores) {
        spdlog::warn("{}: {}{} will take turns on {}", host.name, counted(ranks, "rank"),
                     threads_ ? fmt::format(" of {}", counted(*threads_, "thread")) : "",
                     counted(machine.num_usable_cores, "core"));
      }
    }
  }
  /// Threads that have no cores of their own take turns on all of them. The same goes where a quota
  /// leaves fewer than there are: other containers would be given the same first ones.
  Share next(const Machine& machine) {
    const int ranks = counts_.at(machine.id);
    const int index = given_[machine.id]++;
    const auto cores = static_cast<int>(machine.cores.size());
    const int threads = threads_.value_or(share_of_threads(machine.num_usable_cores, index, ranks));
    const bool is_crowded = threads_ && *threads_ > std::max(1, cores / ranks);
    if (is_crowded || machine.num_usable_cores < cores) return {.threads = threads};
    return {.threads = threads, .cores = launcher::share_of_cores(machine.cores, index, ranks)};
  }

 private:
  std::optional<int> threads_;
  std::map<std::string, int> counts_;  // of ranks, by machine
  std::map<std::string, int> given_;
};

std::optional<std::string> own_variable(const std::string& name) {
  return process_environment(name.c_str());
}

/// Returns the variables that NCCL's own discovery goes by; ranks that talk over sockets are told
/// their address as well.
launcher::Variables interface_variables(const LaunchFlags& flags) {
  if (flags.interface.empty()) return {};
  return {{"NCCL_SOCKET_IFNAME", flags.interface}};
}

std::optional<std::string> value_of(const launcher::Variables& variables, std::string_view name) {
  const auto last = std::find_if(variables.rbegin(), variables.rend(),
                                 [&](const auto& variable) { return variable.first == name; });
  return last == variables.rend() ? std::nullopt : std::optional(last->second);
}

void append(launcher::Variables& variables, const launcher::Variables& more) {
  variables.insert(variables.end(), more.begin(), more.end());  // the last of a name counts
}

/// Replaces the token by the salt from which the ranks' host derives it.
void replace_token(launcher::Variables& variables, const std::string& salt) {
  std::erase_if(variables, [](const auto& variable) { return variable.first == kTokenVariable; });
  variables.emplace_back(kTokenSaltVariable, salt);
}

/// The seats have no GPUs where ranks compute on processors. Throws launcher::PreflightError where
/// a slot's GPU has gone since the hosts were asked.
std::vector<RankSeat> seats_of_job(const std::vector<Host>& hosts,
                                   bool may_share,
                                   const HostAccess& access) {
  std::vector<RankSeat> all;
  for (const Host& host : hosts) {
    const Machine machine = access.machine_of(host.name);
    for (RankSeat& seat : seats_of(host, machine.id, {.gpus = machine.gpus}, {}, may_share)) {
      if (!machine.gpus.empty() && !seat.gpu) {
        throw launcher::PreflightError(fmt::format("host {}: {}", host.name, seat.why_none));
      }
      all.push_back(std::move(seat));
    }
  }
  return all;
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
                       const TrainingConfig& training,
                       const LaunchFlags& flags,
                       const HostAccess& access) {
  const launcher::Variables asked = launcher::asked_variables(flags.environment, own_variable);
  launcher::Variables passed = launcher::passed_variables(launcher::own_variables());
  std::erase_if(passed, [](const auto& variable) { return variable.first == kTokenVariable; });
  const ThreadWish wish = thread_wish(training, [&](const char* name) {
    const std::optional<std::string> value = value_of(asked, name);
    return value ? value : process_environment(name);
  });
  if (const auto notice = wish.notice()) spdlog::info("{}", *notice);
  CoreShares shares(hosts, access, wish.threads());
  std::vector<std::string> argv = {"dstrain", "train"};
  const std::vector<std::string> run_arguments = to_arguments(run);
  argv.insert(argv.end(), run_arguments.begin(), run_arguments.end());

  RankEnv env;
  env.world_size = count_ranks(hosts);
  env.cross_size = static_cast<int>(hosts.size());
  env.master_address = master.address;
  env.master_port = master.port;
  const std::string shared = access.shared_secret();
  const std::string salt = make_job_secret();
  env.token = shared.empty() ? salt : derive_rank_secret(shared, salt);
  env.progress = isatty(STDERR_FILENO) == 1 ? Progress::kTerminal : Progress::kLines;
  env.has_lifeline = true;
  env.collective_timeout_s = collective_timeout_s(flags);

  env.job = run.job;
  env.restart = run.restart;
  env.machine = run.machine;

  const std::vector<RankSeat> seats = seats_of_job(hosts, flags.share_gpus, access);
  const std::vector<int> sharers = ranks_on_gpus(seats);
  launcher::Job job;
  for (const Host& host : hosts) {
    const Machine machine = access.machine_of(host.name);
    const auto own_address = master.own_addresses.find(host.name);
    env.own_address = own_address == master.own_addresses.end() ? "" : own_address->second;
    env.local_size = static_cast<int>(host.slots.size());
    for (env.local_rank = 0; env.local_rank < env.local_size; ++env.local_rank) {
      env.listen_address = env.rank == 0 ? master.listen_address : "";
      const CoreShares::Share share = shares.next(machine);
      env.threads = share.threads;
      launcher::Variables variables;
      if (!machine.inherits_environment) variables = passed;
      append(variables, interface_variables(flags));
      append(variables, asked);
      const auto rank = static_cast<std::size_t>(env.rank);
      if (!machine.gpus.empty()) {
        env.gpu = seats[rank].gpu_index;
        env.ranks_on_gpu = sharers[rank];
        // A host that shows one GPU has chosen already, perhaps a part of one (MIG), whose name
        // would have to be its own.
        if (machine.gpus.size() > 1) {
          variables.emplace_back("CUDA_VISIBLE_DEVICES", seats[rank].gpu->uuid);
        }
      }
      append(variables, to_env(env));
      if (machine.makes_rank_secret) replace_token(variables, salt);
      // The cores are shared out here; nothing else may bind threads.
      std::vector<std::string> unset = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY",
                                        "KMP_AFFINITY"};
      // Otherwise the values that the launcher or the agent has set for its own ranks would win.
      if (value_of(variables, "OMP_WAIT_POLICY")) unset.emplace_back("GOMP_SPINCOUNT");
      job.processes.push_back({.host = host.name,
                               .rank = env.rank,
                               .local_rank = env.local_rank,
                               .executable = "/proc/self/exe",  // the same build, also if replaced
                               .argv = argv,
                               .environment = std::move(variables),
                               .unset = std::move(unset),
                               .cores = share.cores,
                               .working_folder = std::filesystem::current_path(),
                               .takes_listener = env.rank == 0});
      ++env.rank;
    }
    ++env.cross_rank;
  }
  return job;
}

}  // namespace dstrain
