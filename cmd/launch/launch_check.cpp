#include "cmd/launch/launch_check.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "cmd/inspect/inspected_prompts.h"
#include "cmd/inspect/inspected_run.h"
#include "cmd/inspect/inspected_text.h"
#include "cmd/inspect/shown_data.h"
#include "cmd/launch/host_machine.h"
#include "cmd/launch/launch_layout.h"
#include "cmd/launch/preflight.h"
#include "cmd/memory/memory_check.h"
#include "cmd/memory/memory_report.h"
#include "cmd/rank/rank_threads.h"
#include "cmd/run_inputs.h"
#include "engine/base/scratch_folder.h"
#include "engine/train/fit_choices.h"
#include "engine/train/memory_estimate.h"
#include "kernels/cpu/memory_info.h"
#include "launcher/hosts/host_failure.h"
#include "launcher/hosts/local_host.h"
#include "launcher/process/errors.h"

namespace dstrain {
namespace {

using launcher::Host;

/// The run's config with more --set's behind the user's.
ConfigWith config_with(const RunFlags& run, int world_size) {
  return [run, world_size](const std::vector<std::string>& more) {
    RunFlags changed = run;
    changed.overrides.insert(changed.overrides.end(), more.begin(), more.end());
    return load_and_resolve(changed, world_size);
  };
}

/// The device that the ranks of these hosts compute on.
EstimatedDevice device_of(const Config& config, const std::vector<Host>& hosts) {
  EstimatedDevice device{
      .cuda = config.training.device == DeviceChoice::kCuda, .threads = 1, .ranks_per_host = 1};
  for (const Host& host : hosts)
    device.ranks_per_host = std::max(device.ranks_per_host, static_cast<int>(host.slots.size()));
  device.threads = estimated_threads(config, device.ranks_per_host);
  return device;
}

MemoryEstimate plan_of(const LaunchFlags& flags, const std::vector<Host>& hosts) {
  const int world_size = count_ranks(hosts);
  const ConfigWith config = config_with(flags.run, world_size);
  return estimate_memory(config, world_size, device_of(config({}).config, hosts), std::nullopt);
}

/// Throws launcher::PreflightError where this host cannot take what is offloaded to a disk.
void require_scratch_folder(const Config& config) {
  const OffloadConfig& offload = config.offload;
  if (offload.states != OffloadTo::kDisk) return;
  if (const std::string why = objection_to_scratch(offload.states_path); !why.empty()) {
    throw launcher::PreflightError(
        fmt::format("host {}: zero_optimization.offload_optimizer.nvme_path: {}",
                    launcher::own_hostname(), why));
  }
}

/// One object: the plan's, and what the hosts said.
std::string with_hosts(const std::string& plan, const PreflightReport& report) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(plan);
  for (const HostReport& host : report.hosts) {
    json["hosts"].push_back({{"name", host.name},
                             {"address", host.address},
                             {"ranks", host.slots},
                             {"cores", host.cores},
                             {"available_memory_bytes", host.available_memory_bytes},
                             {"clock_ahead_s", host.clock_ahead_s},
                             {"to_master_ms", host.to_master_ms}});
    for (const launcher::GpuReport& gpu : host.gpus) {
      nlohmann::ordered_json one = {
          {"model", gpu.model}, {"uuid", gpu.uuid}, {"memory_bytes", gpu.total_bytes}};
      if (gpu.free_bytes >= 0) one["free_memory_bytes"] = gpu.free_bytes;
      json["hosts"].back()["gpus"].push_back(std::move(one));
    }
    if (!host.driver.empty()) json["hosts"].back()["driver"] = host.driver;
  }
  json["problems"] = nlohmann::ordered_json::array();
  for (const launcher::HostFailure& failure : report.failures) {
    json["problems"].push_back({{"host", failure.host},
                                {"phase", failure.phase},
                                {"what", failure.what},
                                {"fix", failure.fix}});
  }
  json["master"] = {{"address", report.master.address}, {"port", report.master.port}};
  constexpr int kIndent = 2;
  return json.dump(kIndent) + "\n";
}

/// Shows which text of the first sample is trained, or the first prompt, if the data are on this
/// machine.
void show_first_sample(const Config& config) {
  if (!config.data.samples && !config.policy.enabled()) return;
  try {
    if (config.policy.enabled()) {
      fmt::print("{}", inspected_prompts(config, 1, PromptForm::kFirst));
      return;
    }
    const ShownData shown(config);
    const InspectedRun run = inspect_run(
        {.data = shown.data(), .vocab_size = config.model.vocab_size, .seed = config.training.seed},
        1);
    fmt::print("{}", first_sample_text(run, isatty(STDOUT_FILENO) == 1));
  } catch (const ConfigError& error) {
    spdlog::warn("the first sample cannot be shown: {}", error.what());
  }
}

}  // namespace

void show_plan(const LaunchFlags& flags,
               const LoadedConfig& loaded,
               const std::vector<Host>& hosts) {
  for (const std::string& notice : loaded.notices)
    spdlog::info("{}", notice);
  for (const std::string& warning : loaded.warnings)
    spdlog::warn("{}", warning);
  // It forms one object with the answers of the hosts, which check_fleet prints.
  if (flags.json && !flags.offline && has_other_machines(hosts)) return;
  const MemoryEstimate plan = plan_of(flags, hosts);
  fmt::print("{}", flags.json ? to_json(plan, loaded.config) : to_text(plan, loaded.config));
  if (!flags.json) show_first_sample(loaded.config);
}

MachineHere look_at_machine(DeviceChoice wish,
                            const std::vector<Host>& hosts,
                            launcher::HostAnswer gpus,
                            bool may_share) {
  const launcher::ProcessorReport processor = processor_here();
  std::vector<RankSeat> seats;
  for (const Host& host : hosts) {
    for (RankSeat& seat : seats_of(host, "", gpus, processor, may_share))
      seats.push_back(std::move(seat));
  }
  MachineHere here{
      .gpus = std::move(gpus), .device = decide_device(wish, seats, may_share), .gpu_of_rank = {}};
  for (const RankSeat& seat : seats) {
    if (seat.gpu) here.gpu_of_rank.push_back(seat.gpu_index);
  }
  return here;
}

void check_here(const LaunchFlags& flags,
                const LoadedConfig& loaded,
                const std::vector<Host>& hosts,
                const MachineHere& machine) {
  for (const auto require : {require_inputs, require_scratch_folder}) {
    try {
      require(loaded.config);
    } catch (const std::exception& error) {
      if (!flags.check) throw;
      spdlog::warn("a start would be refused: {}", error.what());
    }
  }
  if (!machine.device.failures.empty()) {
    const launcher::HostFailure& first = machine.device.failures.front();
    throw launcher::PreflightError(
        fmt::format("host {}: {}: {}", first.host, first.what, first.fix));
  }
  spdlog::info("{}", machine.device.line);
  // Hosts of one machine, under one name or several, share its memory.
  const int world_size = count_ranks(hosts);
  HostMemory here{.name = launcher::own_hostname(),
                  .ranks = world_size,
                  .available_bytes = read_memory_info().available_bytes};
  const std::string folder = disk_folder_for(loaded.config.offload);
  const bool offloads = loaded.config.offload.states == OffloadTo::kDisk;
  const bool is_usable = offloads || objection_to_scratch(folder).empty();
  here.free_disk_bytes = is_usable ? free_bytes_in(folder) : 0;
  EstimatedDevice device = device_of(loaded.config, hosts);
  device.ranks_per_host = world_size;
  if (device.cuda) {
    here.gpus = machine.gpus.gpus;
    here.gpu_of_rank = machine.gpu_of_rank;
    if (flags.check && !flags.json) {
      fmt::print("\n{}  {}\n", here.name, describe_gpus(here.gpus, machine.gpus.driver));
    }
    if (const auto shared = gpu_notice(here.name, world_size, here.gpus.size())) {
      spdlog::warn("{}", *shared);
    }
  }
  // A plan for other machines' CPUs may be examined on a small machine.
  const bool is_asked = device.cuda || !flags.check;
  if (!flags.no_memory_check && is_asked) {
    for (const std::string& notice :
         check_memory(config_with(flags.run, world_size), {&here, 1}, device))
      spdlog::warn("{}", notice);
  }
}

void check_fleet(LaunchFlags& flags,
                 LoadedConfig& loaded,
                 const std::vector<Host>& hosts,
                 DeviceChoice wish,
                 FleetAccess& access) {
  const PreflightReport report = check_hosts(access.fleet(), hosts, loaded.config,
                                             {.config_file = flags.run.config,
                                              .master = access.wish(),
                                              .device = wish,
                                              .may_share_gpus = flags.share_gpus});
  flags.run.machine = report.machine;
  loaded = load_and_resolve(flags.run, count_ranks(hosts));
  if (report.machine.cuda) access.use_gpus(flags.share_gpus);
  if (flags.check) {
    show_plan(flags, loaded, hosts);
    fmt::print("{}", flags.json ? with_hosts(to_json(plan_of(flags, hosts), loaded.config), report)
                                : "\n" + to_text(report));
  }
  for (const std::string& notice : report.notices)
    spdlog::warn("{}", notice);
  if (!report.device_line.empty()) spdlog::info("{}", report.device_line);
  if (!report.failures.empty()) {
    std::set<std::string> bad;
    for (const launcher::HostFailure& failure : report.failures)
      bad.insert(failure.host);
    fmt::print(stderr, "{}", launcher::to_table(report.failures, hosts.size()));
    const bool is_elastic = flags.min_nodes > 0 &&
                            hosts.size() - bad.size() >= static_cast<std::size_t>(flags.min_nodes);
    if (flags.check || !is_elastic) {
      throw launcher::PreflightError(
          fmt::format("{} of {} hosts cannot take part", bad.size(), hosts.size()));
    }
    for (const launcher::HostFailure& failure : report.failures)
      access.exclude(failure.host, failure.what);
    return;  // another layout than the plan's: its memory is judged by the ranks themselves
  }
  if (!flags.no_memory_check) {
    for (const std::string& tight :
         check_memory(config_with(flags.run, count_ranks(hosts)), memory_of(report),
                      device_of(loaded.config, hosts)))
      spdlog::warn("{}", tight);
  }
}

}  // namespace dstrain
