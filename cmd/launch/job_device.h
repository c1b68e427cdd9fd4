// JobDevice: what the ranks of a job compute on: one kind of device for all of them, decided once,
// from what the machines say of their GPUs and processors. dstrain launch decides before a rank
// starts; ranks that something else has started decide when they meet (rank_meeting.h).
//
//   training.device "cpu"    the processors
//                   "cuda"   a GPU for each rank, or an error
//                   "auto"   GPUs where every host has some that can be used, processors where none
//                            has; an error where they differ
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/config/config.h"
#include "engine/config/machine_facts.h"
#include "launcher/agent/agent_protocol.h"
#include "launcher/agent/host_question.h"
#include "launcher/hosts/host_failure.h"
#include "launcher/hosts/hostfile.h"

namespace dstrain {

/// The device on which one rank would compute.
struct RankSeat {
  std::string host;
  std::string machine;  ///< several hosts' names may be those of one machine
  launcher::ProcessorReport processor{};
  bool host_has_gpus = false;  ///< usable ones, even if there is none for this rank
  int gpu_index = -1;          ///< in the host's order
  std::optional<launcher::GpuReport> gpu{};
  std::string why_none{};  ///< why the rank has none, as a clause
  std::string mend{};      ///< what to do about that
};

/// The GPU of a slot: the one of its number; where ranks may share, they take them by turns.
int gpu_of_slot(int slot, std::size_t num_gpus, bool may_share);

/// The ranks of one host, in the order of its slots. `gpus` is what it answered to kGpus.
std::vector<RankSeat> seats_of(const launcher::Host& host,
                               const std::string& machine,
                               const launcher::HostAnswer& gpus,
                               const launcher::ProcessorReport& processor,
                               bool may_share);

struct JobDevice {
  MachineFacts facts;  ///< of the hosts with which nothing is wrong
  /// "device=cuda ranks=8 gpus=\"8 × NVIDIA H100 80GB HBM3\"", and why where the config left it
  /// open.
  std::string line;
  std::vector<launcher::HostFailure> failures;  ///< one a host and cause
};

/// `wish` is the config's. Ranks share a GPU only where `may_share`.
JobDevice decide_device(DeviceChoice wish, std::span<const RankSeat> seats, bool may_share);

/// The number of seats that share each seat's GPU.
std::vector<int> ranks_on_gpus(std::span<const RankSeat> seats);

/// The facts assumed of machines that nobody asks: with "cuda", that their GPUs multiply in 16
/// bits; with "auto", that they have no GPUs. Without `hosts`, nothing is said of their number.
MachineFacts assumed_facts(DeviceChoice wish, const std::vector<launcher::Host>& hosts = {});

}  // namespace dstrain
