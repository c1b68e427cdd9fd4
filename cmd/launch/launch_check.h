// The checks that `dstrain launch` makes before it starts a run, and shows with --check: the plan,
// and the hosts against it.
#pragma once

#include <vector>

#include "cmd/launch/fleet_access.h"
#include "cmd/launch/job_device.h"
#include "cmd/launch/launch_flags.h"
#include "engine/config/config_json.h"
#include "launcher/agent/host_question.h"
#include "launcher/hosts/hostfile.h"

namespace dstrain {

/// The resources that a run on this machine alone finds here.
struct MachineHere {
  launcher::HostAnswer gpus;  ///< empty where the run is on processors
  JobDevice device;
  std::vector<int> gpu_of_rank;  ///< indices into `gpus`, where each rank has one
};

/// The device that the ranks of these hosts, all of them this machine, compute on. `gpus` comes
/// from gpus_here().
MachineHere look_at_machine(DeviceChoice wish,
                            const std::vector<launcher::Host>& hosts,
                            launcher::HostAnswer gpus,
                            bool may_share);

/// Prints the plan; contacts no host.
void show_plan(const LaunchFlags& flags,
               const LoadedConfig& loaded,
               const std::vector<launcher::Host>& hosts);

/// Checks a run on this machine alone. Throws launcher::PreflightError where the machine lacks the
/// GPUs that the run asks for, or has too little memory. With --check, prints which GPUs it has.
void check_here(const LaunchFlags& flags,
                const LoadedConfig& loaded,
                const std::vector<launcher::Host>& hosts,
                const MachineHere& machine);

/// Connects to all hosts and asks them (preflight.h). Their answers settle what the run computes
/// on, with which `flags` and `loaded` are completed. Reports what is wrong in a table, and throws
/// launcher::PreflightError if something is. Where the run can do with fewer hosts, those that are
/// wrong are left out instead. With --check, prints the plan and the hosts' reports.
void check_fleet(LaunchFlags& flags,
                 LoadedConfig& loaded,
                 const std::vector<launcher::Host>& hosts,
                 DeviceChoice wish,
                 FleetAccess& access);

}  // namespace dstrain
