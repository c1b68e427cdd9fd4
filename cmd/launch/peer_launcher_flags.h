// PeerLauncherFlags: the flags of torchrun and of DeepSpeed's launcher under which this one's have
// other names, or that it has no use for. Each is honoured, without effect (a line says why), or
// refused (the sentence says how it is done here); none is silently ignored.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace dstrain {

struct LaunchFlags;

struct PeerLauncherFlags {
  std::string nproc_per_node;  ///< "8", "gpu", "cpu", "auto"
  std::string nnodes;          ///< "2", "1:4"
  std::string rdzv_endpoint;   ///< HOST[:PORT]
  std::string rdzv_backend;
  std::string rdzv_conf;  ///< NAME=VALUE,…
  bool standalone = false;
  bool elastic_training = false;
  std::vector<std::string> without_effect;  ///< sentences
  std::vector<std::string> refused;         ///< sentences
};

void add_peer_launcher_flags(CLI::App& command, PeerLauncherFlags& flags);

/// Puts what `flags.peer` means into the launcher's own flags. Says in a line what has no effect.
/// Throws launcher::UsageError where a flag is refused, or says twice what differs.
void apply_peer_launcher_flags(LaunchFlags& flags);

/// DeepSpeed's programs are given "--deepspeed FILE", or "--deepspeed --deepspeed_config FILE".
/// Throws launcher::UsageError for its launchers that are MPI's.
std::vector<std::string> without_deepspeed_switch(std::vector<std::string> arguments);

}  // namespace dstrain
