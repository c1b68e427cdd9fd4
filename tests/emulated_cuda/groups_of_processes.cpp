// The part that emulated_dstrain links in NCCL's place: the emulated NCCL (emulated_nccl.h) joins
// threads, and the ranks of a launched job are processes. Their groups talk through the host, as
// those of ranks that share a GPU do.
#include <memory>
#include <vector>

#include "cmd/rank/own_address.h"
#include "cmd/rank/rank_env.h"
#include "engine/comm/nccl_communicator.h"
#include "engine/comm/rendezvous.h"
#include "engine/comm/staged_communicator.h"

namespace dstrain {

std::unique_ptr<Communicator> make_nccl_communicator(const NcclGroup& group,
                                                     Store& store,
                                                     Device& device,
                                                     const NcclOptions& options) {
  const RankEnv env = from_env(process_environment);
  std::string address = env.own_address;
  if (address.empty()) {
    address = env.cross_size == 1 ? "127.0.0.1"
                                  : own_address_towards(env.master_address, env.master_port);
  }
  // A rendezvous takes leave of its groups when it ends, so these last as long as the process.
  static std::vector<std::unique_ptr<Rendezvous>> hosts;
  const auto& host = hosts.emplace_back(
      make_process_rendezvous(env.rank, env.world_size, store,
                              {.wire = {.interface_address = address, .secret = env.token},
                               .timeout = options.timeout,
                               .connect_timeout = options.connect_timeout,
                               .activity = options.activity}));
  return make_staged_communicator(host->make_group(group.name + ", emulated", group.members),
                                  std::make_shared<StagingMemory>(device));
}

NcclLibrary find_nccl() {
  return {.version = "", .why_none = "emulated GPUs talk through the host"};
}

}  // namespace dstrain
