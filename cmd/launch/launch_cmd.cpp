// dstrain launch: one run over the hosts of a hostfile. Everything that can be known to be wrong is
// found before the first rank starts.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/launch/fleet_access.h"
#include "cmd/launch/host_machine.h"
#include "cmd/launch/job_device.h"
#include "cmd/launch/launch_by_hand.h"
#include "cmd/launch/launch_check.h"
#include "cmd/launch/launch_flags.h"
#include "cmd/launch/launch_layout.h"
#include "cmd/launch/local_access.h"
#include "cmd/launch/peer_launcher_meaning.h"
#include "cmd/launch/restart_loop.h"
#include "cmd/launch/split_groups.h"
#include "cmd/launch/start_check.h"
#include "cmd/launch/write_fixed.h"
#include "cmd/logging.h"
#include "cmd/rank/rank_env.h"
#include "launcher/hosts/environment.h"
#include "launcher/hosts/slurm.h"
#include "launcher/process/errors.h"

namespace dstrain {
namespace {

using launcher::Host;

constexpr const char* kDefaultHostfile = "/job/hostfile";  // DeepSpeed's

std::optional<std::string> variable_here(const std::string& name) {
  return process_environment(name.c_str());
}

/// The hostfile that the user names, else DeepSpeed's; empty where there is neither.
std::string find_hostfile(const LaunchFlags& flags) {
  if (!flags.hostfile.empty() || flags.fleet.launcher == HostLauncher::kSlurm ||
      flags.peer.standalone || !std::filesystem::exists(kDefaultHostfile)) {
    return flags.hostfile;
  }
  spdlog::info("hostfile={}", kDefaultHostfile);
  return kDefaultHostfile;
}

/// The slots of this machine where the run may be on its GPUs: those of them that can be used.
std::vector<int> usable_gpus(const launcher::HostAnswer& gpus) {
  std::vector<int> usable;
  std::string unusable;
  for (std::size_t i = 0; i < gpus.gpus.size(); ++i) {
    const launcher::GpuReport& gpu = gpus.gpus[i];
    if (gpu.unusable.empty()) {
      usable.push_back(static_cast<int>(i));
    } else if (unusable.empty()) {
      unusable = fmt::format("cuda:{}, {}, is left out: {}", i, gpu.model, gpu.unusable);
    }
  }
  if (!usable.empty() && !unusable.empty()) spdlog::warn("{}", unusable);
  return usable;
}

/// The devices that the run may use here, and the hosts that were asked for.
struct Choice {
  DeviceChoice wish = DeviceChoice::kAuto;
  std::optional<launcher::HostAnswer> gpus_here;  ///< set where the hosts depend on them
  std::vector<Host> hosts;
};

/// Nodes that are started by hand need no hostfile: each knows itself.
Choice choose_hosts(const LaunchFlags& flags, bool by_hand) {
  Choice choice{.wish = wished_device(flags.run)};
  const std::string& path = flags.hostfile;
  if (path.empty() && flags.fleet.launcher == HostLauncher::kSlurm) {
    choice.hosts =
        launcher::filter_hosts(launcher::hosts_of_slurm_allocation(variable_here), flags.filter);
    return choice;
  }
  if (!path.empty()) {
    launcher::Hostfile file = launcher::read_hostfile(path);
    for (const std::string& warning : file.warnings)
      spdlog::warn("{}", warning);
    choice.hosts = launcher::filter_hosts(std::move(file.hosts), flags.filter);
    return choice;
  }
  std::vector<int> gpus;
  // With --offline, the plan may be for another machine.
  if (choice.wish != DeviceChoice::kCpu && !flags.offline) {
    choice.gpus_here = gpus_here();
    gpus = usable_gpus(*choice.gpus_here);
  }
  launcher::HostFilter filter = flags.filter;
  if (by_hand) filter.num_nodes.reset();
  choice.hosts = launcher::hosts_without_hostfile(filter, gpus, flags.share_gpus);
  return choice;
}

/// Reports a file of variables that nobody named on the command line.
void tell_of_found_file(const std::string& path, const std::vector<std::string>& names) {
  spdlog::info("variables from {}: {}", path, fmt::join(names, ", "));
}

/// Reports mistakes in the variables before a host is contacted.
void check_environment(const LaunchFlags& flags, DeviceChoice wish) {
  const launcher::Variables asked =
      launcher::asked_variables(flags.environment, variable_here, tell_of_found_file);
  const bool has_gpus = std::any_of(asked.begin(), asked.end(), [](const auto& variable) {
    return variable.first == "CUDA_VISIBLE_DEVICES";
  });
  if (has_gpus && wish != DeviceChoice::kCpu) {
    throw launcher::UsageError(
        "CUDA_VISIBLE_DEVICES cannot be given to ranks by --env or a file of variables: each rank "
        "is "
        "shown the GPU of its slot; choose slots with --include HOST:SLOT,…, or set the variable "
        "for all processes of that host");
  }
}

/// The device that the ranks of `hosts`, all of them this machine, compute on.
MachineHere look_here(const LaunchFlags& flags,
                      const Choice& choice,
                      const std::vector<Host>& hosts) {
  launcher::HostAnswer gpus;
  if (choice.gpus_here) {
    gpus = *choice.gpus_here;
  } else if (choice.wish != DeviceChoice::kCpu) {
    gpus = gpus_here();
  }
  return look_at_machine(choice.wish, hosts, std::move(gpus), flags.share_gpus);
}

/// `hosts` take part if all goes well; the others of `all_hosts` stand by.
int launch_here(const LaunchFlags& flags,
                const LoadedConfig& config,
                const MachineHere& machine,
                const std::vector<Host>& hosts,
                const std::vector<Host>& all_hosts) {
  const bool something_is_left = check_start(flags, config);
  if (!something_is_left && !flags.check) return kExitSuccess;
  if (flags.check) show_plan(flags, config, hosts);
  if (flags.offline) {
    spdlog::info("{}", machine.device.failures.empty()
                           ? machine.device.line
                           : fmt::format("device={} is assumed, not found on this machine",
                                         flags.run.machine.cuda ? "cuda" : "cpu"));
    return kExitSuccess;
  }
  check_here(flags, config, hosts, machine);
  if (flags.check) return kExitSuccess;
  LocalAccess access(
      flags.master_address, flags.master_port,
      flags.run.machine.cuda ? machine.gpus.gpus : std::vector<launcher::GpuReport>{});
  return run_until_done(flags, config, all_hosts, access);
}

/// Asks the hosts, and trains on them.
int run_on_fleet(LaunchFlags& flags,
                 LoadedConfig& config,
                 DeviceChoice wish,
                 const std::vector<Host>& hosts,
                 const std::vector<Host>& all_hosts,
                 FleetAccess& access) {
  check_fleet(flags, config, hosts, wish, access);
  const bool something_is_left = check_start(flags, config);
  if (flags.check || !something_is_left) return kExitSuccess;
  return run_until_done(flags, config, all_hosts, access);
}

int launch_on_fleet(LaunchFlags flags,
                    LoadedConfig config,
                    DeviceChoice wish,
                    const std::vector<Host>& hosts,
                    const std::vector<Host>& all_hosts) {
  if (flags.offline) {
    (void)check_start(flags, config);
    show_plan(flags, config, hosts);
    spdlog::info("hosts={} none of them was contacted; device={}{}", hosts.size(),
                 flags.run.machine.cuda ? "cuda" : "cpu",
                 wish == DeviceChoice::kAuto ? " is assumed, as training.device is \"auto\"" : "");
    return kExitSuccess;
  }
  FleetOptions fleet = flags.fleet;
  fleet.interface = flags.interface;
  fleet.listen = flags.listen;
  FleetAccess access(fleet, {.address = flags.master_address,
                             .interface = flags.interface,
                             .port = flags.master_port,
                             .listen = flags.listen});
  return run_on_fleet(flags, config, wish, hosts, all_hosts, access);
}

void set_up_launch_logging(const LaunchFlags& flags) {
  set_up_logging("[launch] ");
  if (!flags.log_level.empty()) spdlog::set_level(spdlog::level::from_str(flags.log_level));
  if (flags.quiet) spdlog::set_level(spdlog::level::err);
}

/// The config as the flags and these hosts have it; nothing where a flag asks for no more than what
/// has been printed by then.
std::optional<LoadedConfig> prepare(const LaunchFlags& flags,
                                    DeviceChoice wish,
                                    const std::vector<Host>& hosts) {
  LoadedConfig config = load_and_resolve(flags.run, count_ranks(hosts));
  if (flags.print_config) {
    fmt::print("{}", describe_origins(config));
    return std::nullopt;
  }
  check_environment(flags, wish);
  if (const auto warning = describe_split_groups(config.config, hosts)) {
    spdlog::warn("{}", *warning);
  }
  return config;
}

/// Runs on node 0 once all nodes that were started by hand have come.
int lead_nodes(LaunchFlags flags,
               DeviceChoice wish,
               const std::vector<Host>& all_hosts,
               FleetAccess& access) {
  const std::vector<Host> hosts = without_standbys(flags, all_hosts);
  flags.run.machine = assumed_facts(wish, hosts);  // until they have been asked
  std::optional<LoadedConfig> config = prepare(flags, wish, hosts);
  return config ? run_on_fleet(flags, *config, wish, hosts, all_hosts, access) : int{kExitSuccess};
}

int launch(LaunchFlags flags) {
  set_up_launch_logging(flags);
  apply_peer_launcher_flags(flags);
  flags.hostfile = find_hostfile(flags);
  const bool by_hand = is_by_hand(flags);
  Choice choice = choose_hosts(flags, by_hand);
  if (by_hand) {
    const NodesByHand nodes = find_nodes_by_hand(flags, choice.hosts, !flags.hostfile.empty());
    if (!flags.offline && !flags.print_config && flags.write_fixed.empty()) {
      return launch_by_hand(flags, nodes,
                            [&](const std::vector<Host>& arrived, FleetAccess& access) {
                              return lead_nodes(flags, choice.wish, arrived, access);
                            });
    }
    choice.hosts = nodes.hosts;
  }
  const std::vector<Host> hosts = without_standbys(flags, choice.hosts);
  std::optional<MachineHere> here;
  if (has_other_machines(choice.hosts)) {
    flags.run.machine = assumed_facts(choice.wish, hosts);  // until they have been asked
  } else {
    here = look_here(flags, choice, hosts);
    flags.run.machine = here->device.facts;
  }
  if (!flags.write_fixed.empty()) {
    return write_fixed(flags.run, count_ranks(hosts), flags.write_fixed);
  }
  const std::optional<LoadedConfig> config = prepare(flags, choice.wish, hosts);
  if (!config) return kExitSuccess;
  return here ? launch_here(flags, *config, *here, hosts, choice.hosts)
              : launch_on_fleet(flags, *config, choice.wish, hosts, choice.hosts);
}

}  // namespace

void add_launch_command(CLI::App& app, Command& chosen) {
  auto flags = std::make_shared<LaunchFlags>();
  CLI::App* const command = app.add_subcommand(
      "launch", "Run a training job on the hosts of a hostfile, or on this machine");
  add_launch_flags(*command, *flags);
  command->callback([flags, &chosen] { chosen = [flags] { return launch(*flags); }; });
}

void add_evaluate_command(CLI::App& app, Command& chosen) {
  auto flags = std::make_shared<LaunchFlags>();
  CLI::App* const command = app.add_subcommand(
      "evaluate",
      "Print loss and perplexity of each source of data.validation, all of it, by the newest "
      "checkpoint or the weights that the run would start from");
  add_launch_flags(*command, *flags);
  command->footer(
      "It starts ranks as launch does, in the layout of the config, and changes nothing in the\n"
      "run's folder, but for samples that it makes of JSON lines there.\n"
      "Examples:\n"
      "  dstrain evaluate configs/quickstart.json\n"
      "  dstrain evaluate CONFIG --num_gpus 2 --set data.validation=data/other/train\n"
      "  dstrain evaluate CONFIG --set checkpoint.resume=runs/a/checkpoints/step-00000400");
  command->callback([flags, &chosen] {
    flags->run.evaluates = true;
    flags->run.evaluates_sources = true;
    chosen = [flags] { return launch(*flags); };
  });
}

}  // namespace dstrain
