// What `dstrain launch` checks before it starts a run, and shows with --check: the plan, and the
// hosts against it.
#pragma once

#include <vector>

#include "cmd/fleet_access.h"
#include "cmd/launch_flags.h"
#include "engine/spec/config_json.h"
#include "launcher/hostfile.h"

namespace dstrain {

/// Prints the plan; contacts no host.
void show_plan(const LaunchFlags& flags,
               const LoadedConfig& loaded,
               const std::vector<launcher::Host>& hosts);

/// A run on this machine alone. Throws launcher::PreflightError where it has no GPU that the run
/// asks for, or too little memory. With --check prints what GPUs it has.
void check_here(const LaunchFlags& flags,
                const LoadedConfig& loaded,
                const std::vector<launcher::Host>& hosts);

/// Connects to all hosts and asks them (preflight.h); says what is wrong, in a table, and throws
/// launcher::PreflightError if something is. Where the run can do with fewer hosts, those that are
/// wrong are left out instead. With --check prints what the hosts said of themselves.
void check_fleet(const LaunchFlags& flags,
                 const LoadedConfig& loaded,
                 const std::vector<launcher::Host>& hosts,
                 FleetAccess& access);

}  // namespace dstrain
