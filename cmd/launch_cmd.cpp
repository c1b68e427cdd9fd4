// dstrain launch: one run over the hosts of a hostfile. Everything that can be known to be wrong is
// found before the first rank starts.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <asio.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "cmd/command.h"
#include "cmd/exit_codes.h"
#include "cmd/launch_flags.h"
#include "cmd/launch_layout.h"
#include "cmd/logging.h"
#include "cmd/memory_check.h"
#include "cmd/memory_report.h"
#include "cmd/restart_loop.h"
#include "cmd/split_groups.h"
#include "engine/train/memory_estimate.h"
#include "kernels/cpu/memory_info.h"
#include "launcher/local_host.h"
#include "launcher/local_process.h"

namespace dstrain {
namespace {

using launcher::Host;

constexpr const char* kDefaultHostfile = "/job/hostfile";  // DeepSpeed's

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
  const LoadedConfig config = load_and_resolve(flags.run, count_ranks(hosts));
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

  asio::io_context loop;
  launcher::LocalSpawner spawner(loop);
  const auto nobody_is_silent = [](const std::vector<Host>&) {
    return std::map<std::string, std::string>{};  // all are this machine
  };
  return run_until_done(flags, config, hosts,
                        {.loop = loop, .spawner = spawner, .find_silent = nobody_is_silent});
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
