// dstrain launch: one run over the hosts of a hostfile. Everything that can be known to be wrong is
// found before the first rank starts.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/fleet_access.h"
#include "cmd/launch_by_hand.h"
#include "cmd/launch_check.h"
#include "cmd/launch_flags.h"
#include "cmd/launch_layout.h"
#include "cmd/local_access.h"
#include "cmd/logging.h"
#include "cmd/rank_env.h"
#include "cmd/restart_loop.h"
#include "cmd/split_groups.h"
#include "cmd/start_check.h"
#include "cmd/write_fixed.h"
#include "launcher/environment.h"
#include "launcher/slurm.h"

namespace dstrain {
namespace {

using launcher::Host;

constexpr const char* kDefaultHostfile = "/job/hostfile";  // DeepSpeed's

std::optional<std::string> variable_here(const std::string& name) {
  return process_environment(name.c_str());
}

/// DeepSpeed's where there is one and none is named; empty: there is none.
std::string find_hostfile(const LaunchFlags& flags) {
  if (!flags.hostfile.empty() || flags.fleet.launcher == HostLauncher::kSlurm ||
      flags.peer.standalone || !std::filesystem::exists(kDefaultHostfile)) {
    return flags.hostfile;
  }
  spdlog::info("hostfile={}", kDefaultHostfile);
  return kDefaultHostfile;
}

/// Nodes that are started by hand need no hostfile: each knows itself.
std::vector<Host> choose_hosts(const LaunchFlags& flags, bool by_hand) {
  const std::string& path = flags.hostfile;
  if (path.empty() && flags.fleet.launcher == HostLauncher::kSlurm) {
    return launcher::filter_hosts(launcher::hosts_of_slurm_allocation(variable_here), flags.filter);
  }
  if (path.empty()) {
    launcher::HostFilter filter = flags.filter;
    if (by_hand) filter.num_nodes.reset();
    return launcher::hosts_without_hostfile(filter);
  }
  launcher::Hostfile file = launcher::read_hostfile(path);
  for (const std::string& warning : file.warnings)
    spdlog::warn("{}", warning);
  return launcher::filter_hosts(std::move(file.hosts), flags.filter);
}

/// What is wrong with them is said before a host is contacted.
void check_environment(const launcher::EnvironmentFlags& flags) {
  launcher::asked_variables(flags, variable_here);
}

/// `hosts` take part if all goes well; the others of `all_hosts` stand by.
int launch_here(const LaunchFlags& flags,
                const LoadedConfig& config,
                const std::vector<Host>& hosts,
                const std::vector<Host>& all_hosts) {
  check_here(flags, config, hosts);
  if (flags.check) return kExitSuccess;
  LocalAccess access(flags.master_address, flags.master_port);
  return run_until_done(flags, config, all_hosts, access);
}

int launch_on_fleet(const LaunchFlags& flags,
                    const LoadedConfig& config,
                    const std::vector<Host>& hosts,
                    const std::vector<Host>& all_hosts) {
  if (flags.offline) {
    spdlog::info("hosts={} none of them was contacted", hosts.size());
    return kExitSuccess;
  }
  FleetOptions fleet = flags.fleet;
  fleet.interface = flags.interface;
  FleetAccess access(
      fleet,
      {.address = flags.master_address, .interface = flags.interface, .port = flags.master_port});
  check_fleet(flags, config, hosts, access);
  return flags.check ? int{kExitSuccess} : run_until_done(flags, config, all_hosts, access);
}

void set_up_launch_logging(const LaunchFlags& flags) {
  set_up_logging("[launch] ");
  if (!flags.log_level.empty()) spdlog::set_level(spdlog::level::from_str(flags.log_level));
  if (flags.quiet) spdlog::set_level(spdlog::level::err);
}

/// The config as the flags and these hosts have it; said where a flag asks for no more.
struct Prepared {
  LoadedConfig config;
  bool is_all = false;  ///< nothing else was asked for
};

Prepared prepare(const LaunchFlags& flags, const std::vector<Host>& hosts) {
  Prepared prepared{.config = load_and_resolve(flags.run, count_ranks(hosts))};
  if (flags.print_config) {
    fmt::print("{}", describe_origins(prepared.config));
    prepared.is_all = true;
    return prepared;
  }
  check_environment(flags.environment);
  if (const auto warning = describe_split_groups(prepared.config.config, hosts)) {
    spdlog::warn("{}", *warning);
  }
  prepared.is_all = !check_start(flags, prepared.config) && !flags.check;
  if (flags.check) show_plan(flags, prepared.config, hosts);
  return prepared;
}

/// What node 0 does once all nodes that were started by hand have come.
int lead_nodes(const LaunchFlags& flags, const std::vector<Host>& all_hosts, FleetAccess& access) {
  const std::vector<Host> hosts = without_standbys(flags, all_hosts);
  const Prepared prepared = prepare(flags, hosts);
  if (prepared.is_all) return kExitSuccess;
  check_fleet(flags, prepared.config, hosts, access);
  return flags.check ? int{kExitSuccess}
                     : run_until_done(flags, prepared.config, all_hosts, access);
}

int launch(LaunchFlags flags) {
  set_up_launch_logging(flags);
  apply_peer_launcher_flags(flags);
  flags.hostfile = find_hostfile(flags);
  const bool by_hand = is_by_hand(flags);
  std::vector<Host> all_hosts = choose_hosts(flags, by_hand);
  if (by_hand) {
    const NodesByHand nodes = find_nodes_by_hand(flags, all_hosts, !flags.hostfile.empty());
    if (!flags.offline && !flags.print_config && flags.write_fixed.empty()) {
      return launch_by_hand(flags, nodes,
                            [&](const std::vector<Host>& arrived, FleetAccess& access) {
                              return lead_nodes(flags, arrived, access);
                            });
    }
    all_hosts = nodes.hosts;
  }
  const std::vector<Host> hosts = without_standbys(flags, all_hosts);
  if (!flags.write_fixed.empty()) {
    return write_fixed(flags.run, count_ranks(hosts), flags.write_fixed);
  }
  const Prepared prepared = prepare(flags, hosts);
  if (prepared.is_all) return kExitSuccess;
  return has_other_machines(all_hosts) ? launch_on_fleet(flags, prepared.config, hosts, all_hosts)
                                       : launch_here(flags, prepared.config, hosts, all_hosts);
}

}  // namespace

void add_launch_command(CLI::App& app, Command& chosen) {
  auto flags = std::make_shared<LaunchFlags>();
  CLI::App* const command =
      app.add_subcommand("launch", "One run over the hosts of a hostfile, or on this machine");
  add_launch_flags(*command, *flags);
  command->callback([flags, &chosen] { chosen = [flags] { return launch(*flags); }; });
}

}  // namespace dstrain
