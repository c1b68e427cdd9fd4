// RunFlags: what launch and train both take: the config and the ways to change it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/network_address.h"
#include "engine/config/config_json.h"

namespace CLI {
class App;
}

namespace dstrain {

struct RunFlags {
  std::string config;
  std::vector<std::string> overrides;  ///< --set
  bool allow_unknown_keys = false;
  bool allow_tokenizer_mismatch = false;
  bool ignore_offload = false;              ///< keys that offload only warn
  bool evaluates = false;                   ///< instead of training
  bool evaluates_sources = false;           ///< … each source of its data by itself
  std::optional<HostAndPort> metrics_at{};  ///< where rank 0 answers Prometheus
  bool takes_over = false;                  ///< the run's folder from a run that has it
  /// The job that the ranks belong to, and its attempts before this one (rank_env.h).
  std::string job{};
  int restart = 0;
  /// The facts of the machines that the run uses. No flag sets them: `dstrain launch` and the ranks
  /// find them out and keep them for the whole job, whichever of its hosts are left.
  MachineFacts machine{};
};

void add_run_flags(CLI::App& command, RunFlags& flags);

/// The options with which the config is read.
LoadOptions options_of(const RunFlags& flags);

/// Reads the config and resolves it for that many ranks on these machines. Throws ConfigError with
/// all its problems.
LoadedConfig load_and_resolve(const std::string& config,
                              const LoadOptions& options,
                              int world_size,
                              const MachineFacts& facts = {});
LoadedConfig load_and_resolve(const RunFlags& flags, int world_size);

/// The device that the config asks for; kCpu for a config that cannot be read, which
/// load_and_resolve() reports.
DeviceChoice wished_device(const RunFlags& flags);

/// The flags again, as arguments of another dstrain command.
std::vector<std::string> to_arguments(const RunFlags& flags);

}  // namespace dstrain
