// LaunchFlags: what `dstrain launch` takes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cmd/launch/fleet_options.h"
#include "cmd/launch/peer_launcher_flags.h"
#include "cmd/run_flags.h"
#include "launcher/hosts/environment.h"
#include "launcher/hosts/hostfile.h"

namespace CLI {
class App;
}

namespace dstrain {

/// Flags of a launcher that is one of several, each started by hand.
struct ByHandFlags {
  std::optional<int> node_rank;
  bool no_ssh = false;
  std::string token_file;  ///< empty: DSTRAIN_TOKEN
  std::string job_id;      ///< --rdzv_id
};

struct LaunchFlags {
  RunFlags run;
  std::string hostfile;
  launcher::HostFilter filter;
  std::string master_address;
  std::uint16_t master_port = 0;  ///< 0: any free one
  std::string interface;          ///< on every host; empty: by route
  std::string listen;             ///< address, or "all"; empty: the one that the others use
  launcher::EnvironmentFlags environment;
  FleetOptions fleet;
  bool share_gpus = false;
  bool check = false;
  bool offline = false;  ///< check contacts no host
  bool json = false;     ///< the format in which --check prints
  bool print_config = false;
  std::string write_fixed;  ///< file for a mended copy of the config; empty: none is written
  bool no_memory_check = false;
  int step_timeout_seconds = 0;  ///< 0: learned
  int save_timeout_seconds = 0;  ///< 0: learned
  int max_restarts = 0;
  int max_restarts_without_progress = 3;
  bool restart_after_numerical_abort = false;
  int min_nodes = 0;       ///< 0: all chosen hosts
  int max_nodes = 0;       ///< 0: likewise
  std::string log_folder;  ///< empty: log/ of the run's folder
  std::string log_level;   ///< the launcher's; empty: DSTRAIN_LOG_LEVEL's, or info
  bool quiet = false;      ///< show errors only
  ByHandFlags by_hand;
  PeerLauncherFlags peer;
};

/// Adds the flags with their help, and the command's examples.
void add_launch_flags(CLI::App& command, LaunchFlags& flags);

}  // namespace dstrain
