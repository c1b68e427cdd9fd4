// Preflight: what can be known to be wrong with the hosts of a run before a rank starts, all of it
// at once: one table over all hosts, and one line for each thing that is wrong, with its remedy.
//
//   reachable, host key, login, dstrain's build     Fleet::connect
//   working folder there, output folder writable    config and data files there, and the same
//   master's port free, reached from every host     slots against cores and GPUs, clock
// Memory against the plan is memory_check's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cmd/fleet.h"
#include "cmd/master_place.h"
#include "cmd/memory_check.h"
#include "engine/spec/config.h"
#include "launcher/host_failure.h"
#include "launcher/hostfile.h"

namespace dstrain {

/// Of one host, in the order of the hostfile.
struct HostReport {
  std::string name;
  std::string address{};
  int slots = 0;
  int cores = 0;  ///< 0: it could not be asked
  std::int64_t available_memory_bytes = 0;
  double clock_ahead_s = 0;                 ///< of this machine's
  double to_master_ms = -1;                 ///< a connection's way; -1: not tried
  std::vector<launcher::GpuReport> gpus{};  ///< of a run on GPUs; others are not asked
  std::string driver{};
};

struct PreflightReport {
  std::vector<HostReport> hosts;
  std::vector<launcher::HostFailure> failures;
  std::vector<std::string> notices;  ///< worth a warning
  MasterPlace master;
};

/// Connects to the hosts and asks them. `config_file` and `folder` are as the ranks will find them.
PreflightReport check_hosts(Fleet& fleet,
                            const std::vector<launcher::Host>& hosts,
                            const Config& config,
                            const std::string& config_file,
                            const MasterWish& wish);

/// For check_memory.
std::vector<HostMemory> memory_of(const PreflightReport& report);

/// A table over the hosts.
std::string to_text(const PreflightReport& report);

}  // namespace dstrain
