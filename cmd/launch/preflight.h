// Preflight: what can be known to be wrong with the hosts of a run before a rank starts, all of it
// at once: one table over all hosts, and one line for each thing that is wrong, with its remedy.
//
//   reachable, host key, login, dstrain's build     Fleet::connect
//   working folder there, output folder writable    config and data files there, and the same
//   master's port free, reached from every host     slots against cores, clock
//   what ranks compute on (job_device.h), and a GPU for each slot
// Memory against the plan is memory_check's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cmd/launch/fleet.h"
#include "cmd/launch/master_place.h"
#include "cmd/memory/memory_check.h"
#include "engine/config/config.h"
#include "launcher/hosts/host_failure.h"
#include "launcher/hosts/hostfile.h"

namespace dstrain {

/// The findings about one host; a report lists hosts in the order of the hostfile.
struct HostReport {
  std::string name;
  std::string address{};
  int slots = 0;
  int cores = 0;  ///< 0: it could not be asked
  std::int64_t available_memory_bytes = 0;
  std::int64_t free_disk_bytes = -1;        ///< where the run offloads to a disk; -1: not known
  double clock_ahead_s = 0;                 ///< compared with this machine
  double to_master_ms = -1;                 ///< the time to connect; -1: not tried
  std::vector<launcher::GpuReport> gpus{};  ///< asked for only where the run may use GPUs
  std::vector<int> gpu_of_rank{};           ///< indices into gpus, of a run on GPUs
  std::string driver{};
};

struct PreflightReport {
  std::vector<HostReport> hosts;
  MachineFacts machine;     ///< of the hosts that can take part
  std::string device_line;  ///< says what they compute on; empty: no host answered
  std::vector<launcher::HostFailure> failures;
  std::vector<std::string> notices;  ///< worth a warning
  Master master;
};

/// The user's demands on the hosts.
struct HostWishes {
  std::string config_file;  ///< the path by which ranks will find it
  MasterWish master{};
  DeviceChoice device = DeviceChoice::kAuto;
  bool may_share_gpus = false;
};

/// Connects to the hosts and asks them. Only the files that `config` names matter here.
PreflightReport check_hosts(Fleet& fleet,
                            const std::vector<launcher::Host>& hosts,
                            const Config& config,
                            const HostWishes& wishes);

/// The memory of the hosts, as check_memory takes it.
std::vector<HostMemory> memory_of(const PreflightReport& report);

/// A table over the hosts.
std::string to_text(const PreflightReport& report);

}  // namespace dstrain
