#include "cmd/launch_layout.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/random.h>
#include <unistd.h>

#include "cmd/rank_env.h"
#include "launcher/local_host.h"

namespace dstrain {
namespace {

using launcher::Host;

/// 32 random bytes in hexadecimal.
std::string make_token() {
  std::array<unsigned char, 32> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  std::string token;
  for (const unsigned char byte : bytes)
    token += fmt::format("{:02x}", byte);
  return token;
}

/// Of a collective, on the ranks: beyond what the launcher takes for a hang, since it knows better
/// who keeps whom waiting. For the case that the launcher sees nothing.
int collective_timeout_s(const LaunchFlags& flags) {
  constexpr int kHour = 3600;
  return std::max(kHour, 2 * flags.step_timeout_seconds);
}

}  // namespace

int count_ranks(const std::vector<Host>& hosts) {
  int ranks = 0;
  for (const Host& host : hosts)
    ranks += static_cast<int>(host.slots.size());
  return ranks;
}

Master choose_master(const LaunchFlags& flags) {
  Master master{flags.master_address.empty() ? "127.0.0.1" : flags.master_address,
                flags.master_port};
  if (master.port == 0) {
    master.port = launcher::pick_free_port(master.address);
  } else {
    launcher::require_free_port(master.address, master.port);
  }
  return master;
}

launcher::Job make_job(const std::vector<Host>& hosts,
                       const Master& master,
                       const RunFlags& run,
                       const LaunchFlags& flags) {
  const int world_size = count_ranks(hosts);
  const std::vector<int> cores = launcher::usable_cores();
  if (world_size > static_cast<int>(cores.size())) {
    spdlog::warn("ranks={} cores={}: ranks will take turns on the cores", world_size, cores.size());
  }
  RankEnv env;
  env.world_size = world_size;
  env.cross_size = static_cast<int>(hosts.size());
  env.master_address = master.address;
  env.master_port = master.port;
  env.token = make_token();
  env.progress = isatty(STDERR_FILENO) == 1 ? Progress::kTerminal : Progress::kLines;
  env.has_lifeline = true;
  env.collective_timeout_s = collective_timeout_s(flags);

  launcher::Job job;
  for (const Host& host : hosts) {
    env.local_size = static_cast<int>(host.slots.size());
    for (env.local_rank = 0; env.local_rank < env.local_size; ++env.local_rank) {
      const std::vector<int> share = launcher::share_of_cores(cores, env.rank, world_size);
      env.threads = std::max(1, static_cast<int>(share.size()));
      std::vector<std::string> argv = {"dstrain", "train"};
      const std::vector<std::string> run_arguments = to_arguments(run);
      argv.insert(argv.end(), run_arguments.begin(), run_arguments.end());
      job.processes.push_back(
          {.host = host.name,
           .rank = env.rank,
           .local_rank = env.local_rank,
           .executable = "/proc/self/exe",  // the same build, also if replaced
           .argv = std::move(argv),
           .environment = to_env(env),
           // The cores are shared out here; nothing else may bind threads.
           .unset = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"},
           .cores = share});
      ++env.rank;
    }
    ++env.cross_rank;
  }
  return job;
}

}  // namespace dstrain
