// dstrain launch: one run over the hosts of a hostfile. Everything that can be known to be wrong is
// found before the first rank starts.
#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>
#include <asio.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/random.h>
#include <unistd.h>

#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/logging.h"
#include "cmd/memory_check.h"
#include "cmd/memory_report.h"
#include "cmd/rank_env.h"
#include "cmd/run_flags.h"
#include "cmd/split_groups.h"
#include "engine/train/memory_estimate.h"
#include "kernels/cpu/memory_info.h"
#include "launcher/hostfile.h"
#include "launcher/local_host.h"
#include "launcher/local_process.h"
#include "launcher/log_mux.h"
#include "launcher/supervisor.h"

namespace dstrain {
namespace {

using launcher::Host;

constexpr const char* kDefaultHostfile = "/job/hostfile";  // DeepSpeed's

struct LaunchFlags {
  RunFlags run;
  std::string hostfile;
  launcher::HostFilter filter;
  std::string master_address;
  std::uint16_t master_port = 0;  ///< 0: any free one
  bool check = false;
  bool json = false;  ///< of what check prints
  bool print_config = false;
  bool no_memory_check = false;
  int step_timeout_seconds = 0;  ///< 0: learned
};

std::vector<Host> choose_hosts(const LaunchFlags& flags) {
  std::string path = flags.hostfile;
  if (path.empty() && std::filesystem::exists(kDefaultHostfile)) {
    path = kDefaultHostfile;
    spdlog::info("hostfile={}", path);
  }
  if (path.empty()) return launcher::hosts_without_hostfile(flags.filter);
  launcher::Hostfile file = launcher::read_hostfile(path);
  for (const std::string& warning : file.warnings)
    spdlog::warn("{}", warning);
  return launcher::filter_hosts(std::move(file.hosts), flags.filter);
}

/// Why there is no run over these hosts, until ranks can be started over SSH. Asks no name server.
std::optional<std::string> object_to(const std::vector<Host>& hosts) {
  for (const Host& host : hosts) {
    if (launcher::is_this_machine(host.name)) continue;
    return fmt::format(
        "host {} is not this machine ({}), and this version starts ranks on this machine only; "
        "start them there with srun or mpirun and \"dstrain train\"",
        host.name, launcher::own_hostname());
  }
  return std::nullopt;
}

int count_ranks(const std::vector<Host>& hosts) {
  int ranks = 0;
  for (const Host& host : hosts)
    ranks += static_cast<int>(host.slots.size());
  return ranks;
}

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

/// Where rank 0 listens: the given address and port, or loopback and any free port.
struct Master {
  std::string address;
  std::uint16_t port = 0;
};

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

launcher::Job make_job(const std::vector<Host>& hosts, const Master& master, const RunFlags& run) {
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

/// Makes <output_dir>/log.
std::string make_log_folder(const Config& config) {
  const std::filesystem::path folder = std::filesystem::path(config.training.output_dir) / "log";
  std::filesystem::create_directories(folder);
  return folder;
}

/// The run's config with more --set's behind the user's.
ConfigWith config_with(const RunFlags& run, int world_size) {
  return [run, world_size](const std::vector<std::string>& more) {
    RunFlags changed = run;
    changed.overrides.insert(changed.overrides.end(), more.begin(), more.end());
    return load_and_resolve(changed, world_size);
  };
}

/// What the ranks of these hosts compute on: this version has no other device.
EstimatedDevice device_of(const std::vector<Host>& hosts) {
  EstimatedDevice device{.cuda = false, .threads = 1, .ranks_per_host = 1};
  for (const Host& host : hosts)
    device.ranks_per_host = std::max(device.ranks_per_host, static_cast<int>(host.slots.size()));
  const auto cores = static_cast<int>(launcher::usable_cores().size());
  device.threads = std::max(1, cores / device.ranks_per_host);
  return device;
}

/// On any machine: the hosts are neither needed nor contacted.
void check_run(const LaunchFlags& flags,
               const LoadedConfig& loaded,
               const std::vector<Host>& hosts) {
  for (const std::string& notice : loaded.notices)
    spdlog::info("{}", notice);
  if (const auto objection = object_to(hosts)) spdlog::warn("{}", *objection);
  const int world_size = count_ranks(hosts);
  const MemoryEstimate estimate = estimate_memory(config_with(flags.run, world_size), world_size,
                                                  device_of(hosts), std::nullopt);
  fmt::print("{}",
             flags.json ? to_json(estimate, loaded.config) : to_text(estimate, loaded.config));
}

/// All hosts are this machine, under one name or several: they share its memory.
void check_memory_here(const RunFlags& run, const std::vector<Host>& hosts) {
  const int world_size = count_ranks(hosts);
  const HostMemory here{.name = launcher::own_hostname(),
                        .ranks = world_size,
                        .available_bytes = read_memory_info().available_bytes};
  EstimatedDevice device = device_of(hosts);
  device.ranks_per_host = world_size;
  check_memory(config_with(run, world_size), {&here, 1}, device);
}

int launch(const LaunchFlags& flags) {
  set_up_logging("[launch] ");
  const std::vector<Host> hosts = choose_hosts(flags);
  const int world_size = count_ranks(hosts);
  const LoadedConfig config = load_and_resolve(flags.run, world_size);
  if (flags.print_config) {
    fmt::print("{}", describe_origins(config));
    return kExitSuccess;
  }
  if (const auto warning = describe_split_groups(config.config, hosts)) {
    spdlog::warn("{}", *warning);
  }
  if (flags.check) {
    check_run(flags, config, hosts);
    return kExitSuccess;
  }
  if (const auto objection = object_to(hosts)) throw launcher::PreflightError(*objection);
  if (!flags.no_memory_check) check_memory_here(flags.run, hosts);
  const Master master = choose_master(flags);

  const launcher::Job job = make_job(hosts, master, flags.run);
  launcher::LogMux log(job, {.folder = make_log_folder(config.config)});
  asio::io_context loop;
  launcher::LocalSpawner spawner(loop);
  launcher::Supervisor supervisor(
      loop, spawner, log,
      {.hang_limits = {.step = flags.step_timeout_seconds > 0
                                   ? std::optional(std::chrono::nanoseconds(
                                         std::chrono::seconds(flags.step_timeout_seconds)))
                                   : std::nullopt},
       .peer_lost_code = kExitPeerLost,
       .hang_code = kExitHang,
       .describe_exit_code = describe_exit_code});
  return supervisor.run(job).exit_code;
}

}  // namespace

void add_launch_command(CLI::App& app, Command& chosen) {
  auto flags = std::make_shared<LaunchFlags>();
  CLI::App* const command =
      app.add_subcommand("launch", "One run over the hosts of a hostfile, or on this machine");
  add_run_flags(*command, flags->run);
  command->add_option("-H,--hostfile", flags->hostfile,
                      "Lines \"HOST slots=N\", one rank a slot; default: /job/hostfile where there "
                      "is one, else this machine with one rank, or --num_gpus of them");
  command->add_option("-i,--include", flags->filter.include,
                      "Only these: HOST[:SLOT,…][@HOST…]; a host without slots is all of them");
  command->add_option("-e,--exclude", flags->filter.exclude, "All but these; the same form");
  command->add_option("--num_nodes,--num-nodes", flags->filter.num_nodes, "The first N hosts");
  command->add_option("--num_gpus,--num-gpus,--num_accelerators", flags->filter.num_gpus,
                      "The first N slots of each host; without a hostfile: N ranks");
  command->add_option("--master_addr,--master-addr", flags->master_address,
                      "Address at which rank 0 serves the others; default: 127.0.0.1");
  command
      ->add_option("--master_port,--master-port", flags->master_port,
                   "Port for that; default: one that is free")
      ->check(CLI::Range(1, 65535));
  command->add_flag("--check", flags->check,
                    "Check config and hostfile, plan every pipeline stage, print layout, step and "
                    "memory, and stop; contacts no host");
  command->add_flag("--json", flags->json, "With --check: print as JSON, in bytes")
      ->needs("--check");
  command->add_flag("--no-memory-check", flags->no_memory_check,
                    "Start the ranks even where the plan says that the memory is too small");
  command
      ->add_option("--step-timeout", flags->step_timeout_seconds,
                   "The job hangs when no rank finishes a step for so many seconds; default: 5 × "
                   "the longest step so far, and at least 60")
      ->check(CLI::Range(1, 7 * 24 * 3600));
  command->add_flag("--print-config", flags->print_config,
                    "Print every value of the config with its origin, and stop");
  command->footer(
      "Examples:\n"
      "  dstrain launch --num_gpus 2 configs/quickstart.json\n"
      "  dstrain launch --hostfile hostfiles/localhost configs/quickstart.json --set "
      "training.steps=50\n"
      "  dstrain launch --hostfile hosts --exclude w3@w4:0 CONFIG --check\n"
      "  dstrain launch --hostfile hostfiles/48-hosts.example --check "
      "configs/llama-70b-tp8-pp8.json"
      "\n"
      "Ctrl-C once: the ranks finish their step, save and end. Twice: at once.\n"
      "Exit codes: 0 success, 2 usage or config, 3 hosts, 4 rendezvous, 5 checkpoint, 6 storage,\n"
      "7 numerical, 8 hang, 130/143 interrupted, 128+n a rank was killed by signal n, otherwise\n"
      "that of the rank that failed first.");
  command->callback([flags, &chosen] { chosen = [flags] { return launch(*flags); }; });
}

}  // namespace dstrain
