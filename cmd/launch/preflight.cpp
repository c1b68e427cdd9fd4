#include "cmd/launch/preflight.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "cmd/launch/host_machine.h"
#include "cmd/launch/job_device.h"
#include "engine/base/amount_text.h"

namespace dstrain {
namespace {

using launcher::Host;
using launcher::HostAnswer;
using launcher::HostFailure;
using launcher::HostQuestion;
using launcher::QuestionKind;

constexpr double kClockTolerance = 1.0;  // seconds; nothing depends on it, but people compare logs
// Enough to hash an index of a gigabyte on a slow disk.
constexpr std::chrono::seconds kFilePatience{120};

void check_folders(Fleet& fleet,
                   const std::vector<Host>& hosts,
                   const Config& config,
                   std::vector<HostFailure>& failures) {
  const std::string folder = std::filesystem::current_path();
  const std::vector<HostAnswer> answers = fleet.ask(
      hosts,
      {.kind = QuestionKind::kFolders, .path = folder, .paths = {config.training.output_dir}});
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (answers[i].error.empty()) continue;
    failures.push_back({.host = hosts[i].name,
                        .phase = "folders",
                        .what = answers[i].error,
                        .fix = "ranks run in the folder that dstrain launch runs in, and write "
                               "below training.output_dir: create both there, or share them"});
  }
}

/// The files that a run reads. Indices and the config are compared byte by byte, tokens by their
/// number.
struct RunFiles {
  std::vector<std::string> hashed;
  std::vector<std::string> sized;
};

RunFiles files_of(const Config& config, const std::string& config_file) {
  RunFiles files{.hashed = {config_file}, .sized = {}};
  for (const auto* sources : {&config.data.train, &config.data.validation}) {
    for (const DataSource& source : *sources) {
      // A single .bin file as nanoGPT writes it, or a pair.
      if (source.prefix.ends_with(".bin")) {
        files.sized.push_back(source.prefix);
      } else {
        files.hashed.push_back(source.prefix + ".idx");
        files.sized.push_back(source.prefix + ".bin");
      }
    }
  }
  return files;
}

std::string describe(const launcher::FileFacts& facts) {
  return facts.error.empty() ? fmt::format("{} bytes, hash {:016x}", facts.bytes, facts.hash)
                             : "it is missing";
}

/// Names the hosts whose files are not those of most hosts.
void compare(const std::vector<Host>& hosts,
             const std::vector<std::string>& paths,
             const std::vector<HostAnswer>& answers,
             std::vector<HostFailure>& failures) {
  using Content = std::pair<std::int64_t, std::uint64_t>;
  for (std::size_t file = 0; file < paths.size(); ++file) {
    std::map<Content, int> votes;
    for (const HostAnswer& answer : answers) {
      if (file < answer.files.size() && answer.files[file].error.empty()) {
        ++votes[{answer.files[file].bytes, answer.files[file].hash}];
      }
    }
    const auto usual =
        std::max_element(votes.begin(), votes.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      if (!answers[i].error.empty()) {
        if (file == 0) {
          failures.push_back(
              {.host = hosts[i].name, .phase = "files", .what = answers[i].error, .fix = ""});
        }
        continue;
      }
      const launcher::FileFacts& facts = answers[i].files.at(file);
      if (!facts.error.empty()) {
        failures.push_back(
            {.host = hosts[i].name,
             .phase = "files",
             .what = facts.error,
             .fix = "copy it there: every rank reads config and data on its own host"});
      } else if (Content{facts.bytes, facts.hash} != usual->first) {
        failures.push_back({.host = hosts[i].name,
                            .phase = "files",
                            .what = fmt::format(
                                "{} is not the same as on the other hosts: {} here, {} bytes, hash "
                                "{:016x} on {} of {} hosts",
                                paths[file], describe(facts), usual->first.first,
                                usual->first.second, usual->second, hosts.size()),
                            .fix = "copy it from one of the others"});
      }
    }
  }
}

void check_files(Fleet& fleet,
                 const std::vector<Host>& hosts,
                 const Config& config,
                 const std::string& config_file,
                 std::vector<HostFailure>& failures) {
  const RunFiles files = files_of(config, config_file);
  const std::string folder = std::filesystem::current_path();
  compare(hosts, files.hashed,
          fleet.ask(hosts, {.kind = QuestionKind::kFiles, .path = folder, .paths = files.hashed},
                    kFilePatience),
          failures);
  compare(
      hosts, files.sized,
      fleet.ask(hosts, {.kind = QuestionKind::kFileSizes, .path = folder, .paths = files.sized}),
      failures);
}

/// Looks at the folder on every host to which states are offloaded.
void look_at_disks(Fleet& fleet,
                   const std::vector<Host>& hosts,
                   const Config& config,
                   PreflightReport& report) {
  if (config.offload.states != OffloadTo::kDisk || config.offload.states_path.empty()) return;
  // Relative to where the ranks will run, not to where sshd starts programs.
  const std::filesystem::path folder = std::filesystem::current_path() / config.offload.states_path;
  const std::vector<HostAnswer> answers =
      fleet.ask(hosts, {.kind = QuestionKind::kScratch, .path = folder.string()});
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (!answers[i].error.empty()) {
      report.failures.push_back(
          {.host = hosts[i].name,
           .phase = "disk",
           .what = answers[i].error,
           .fix = "zero_optimization.offload_optimizer.nvme_path is a folder of every host"});
    }
    for (HostReport& host : report.hosts) {
      if (host.name == hosts[i].name) host.free_disk_bytes = answers[i].free_bytes;
    }
  }
}

/// Decides what the hosts that answer would compute on.
void decide(Fleet& fleet,
            const std::vector<Host>& hosts,
            const HostWishes& wishes,
            PreflightReport& report) {
  std::map<std::string, HostAnswer> gpus;
  if (wishes.device != DeviceChoice::kCpu) gpus = fleet.ask_for_gpus(hosts);
  std::vector<RankSeat> seats;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const launcher::AgentHost* const agent = fleet.agent_if_serving(hosts[i].name);
    if (agent == nullptr) continue;
    const std::string machine = fleet.machine_id(hosts[i].name);
    const HostAnswer& answer = gpus[machine];
    HostReport& host = report.hosts[i];
    host.gpus = answer.gpus;
    host.driver = answer.driver;
    for (RankSeat& seat :
         seats_of(hosts[i], machine, answer, agent->hello().processor, wishes.may_share_gpus)) {
      if (seat.gpu) host.gpu_of_rank.push_back(seat.gpu_index);
      seats.push_back(std::move(seat));
    }
  }
  if (seats.empty()) {
    report.machine = assumed_facts(wishes.device, hosts);
    return;
  }
  JobDevice device = decide_device(wishes.device, seats, wishes.may_share_gpus);
  report.machine = device.facts;
  report.device_line = std::move(device.line);
  report.failures.insert(report.failures.end(), device.failures.begin(), device.failures.end());
}

HostReport report_on(const Fleet& fleet, const Host& host) {
  HostReport report{.name = host.name, .slots = static_cast<int>(host.slots.size())};
  const launcher::AgentHost* const agent = fleet.agent_if_serving(host.name);
  if (agent == nullptr) return report;
  report.address = fleet.address_of(host.name);
  report.cores = agent->hello().num_usable_cores;
  report.available_memory_bytes = agent->hello().available_memory_bytes;
  report.clock_ahead_s = std::chrono::duration<double>(agent->clock_offset()).count();
  return report;
}

/// Sorts failures in the order of the hostfile.
void sort_by_host(std::vector<HostFailure>& failures, const std::vector<Host>& hosts) {
  std::map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < hosts.size(); ++i)
    places.emplace(hosts[i].name, i);
  std::stable_sort(
      failures.begin(), failures.end(),
      [&](const HostFailure& a, const HostFailure& b) { return places[a.host] < places[b.host]; });
}

void notice(PreflightReport& report) {
  for (const HostReport& host : report.hosts) {
    if (host.cores > 0 && host.slots > host.cores) {
      report.notices.push_back(fmt::format("{}: {} ranks will take turns on {}", host.name,
                                           host.slots, counted(host.cores, "core")));
    }
    if (auto shared =
            gpu_notice(host.name, static_cast<int>(host.gpu_of_rank.size()), host.gpus.size())) {
      report.notices.push_back(std::move(*shared));
    }
    if (std::abs(host.clock_ahead_s) > kClockTolerance) {
      report.notices.push_back(fmt::format(
          "{}: its clock is {:.1f} s {} this one's; training does not depend on it, but the times "
          "in "
          "its files do",
          host.name, std::abs(host.clock_ahead_s), host.clock_ahead_s > 0 ? "ahead of" : "behind"));
    }
  }
}

}  // namespace

PreflightReport check_hosts(Fleet& fleet,
                            const std::vector<Host>& hosts,
                            const Config& config,
                            const HostWishes& wishes) {
  PreflightReport report;
  report.failures = fleet.connect(hosts);
  for (const Host& host : hosts)
    report.hosts.push_back(report_on(fleet, host));
  const std::vector<Host> serving = fleet.serving(hosts);
  check_folders(fleet, serving, config, report.failures);
  check_files(fleet, serving, config, wishes.config_file, report.failures);
  look_at_disks(fleet, serving, config, report);
  decide(fleet, hosts, wishes, report);
  if (fleet.agent_if_serving(hosts.front().name) != nullptr) {
    report.master = find_master(fleet, hosts, wishes.master, report.failures);
    for (HostReport& host : report.hosts) {
      const auto way = report.master.way_ms.find(host.name);
      if (way != report.master.way_ms.end()) host.to_master_ms = way->second;
    }
  }
  notice(report);
  sort_by_host(report.failures, hosts);
  return report;
}

std::vector<HostMemory> memory_of(const PreflightReport& report) {
  std::vector<HostMemory> memory;
  for (const HostReport& host : report.hosts) {
    memory.push_back({.name = host.name,
                      .ranks = host.slots,
                      .available_bytes = host.available_memory_bytes,
                      .gpus = host.gpus,
                      .gpu_of_rank = host.gpu_of_rank,
                      .free_disk_bytes = host.free_disk_bytes});
  }
  return memory;
}

}  // namespace dstrain
