// PeerLauncherFlags: flags of torchrun and of DeepSpeed's launcher that have another name here, or
// that this launcher has no use for. Each is honoured (peer_launcher_meaning.h), has no effect (a
// line says why), or is refused (the sentence says how it is done here); none is silently ignored.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace dstrain {

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

}  // namespace dstrain
