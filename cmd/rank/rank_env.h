// RankEnv: the whole contract between whatever starts a rank and the rank, as environment
// variables. `dstrain launch` writes all of them; torchrun, srun and mpirun have names of their
// own, which are understood as well; without any of them there is one rank and no network.
//
// Each rank of dstrain launch sees its GPU alone, by UUID, and not the host's whole list: nothing
// in it, library or tool, can then take memory on another's, and no order of devices matters (which
// CUDA_DEVICE_ORDER changes). NCCL and NVML know GPUs by their place on the bus, which is the same
// for all.
//
//   RANK WORLD_SIZE              this rank in the job
//   LOCAL_RANK LOCAL_SIZE        this rank on its host
//   CROSS_RANK CROSS_SIZE        the host in the job
//   MASTER_ADDR MASTER_PORT      where rank 0 serves the store by which ranks find each other
//   DSTRAIN_LISTEN_ADDRESS       rank 0 only: serve on this address, or on "all"; absent: on that
//                                of MASTER_ADDR, which must be this host's then
//   DSTRAIN_OWN_ADDRESS          by which the other ranks reach this one; absent: that from which
//                                packets to MASTER_ADDR leave
//   DSTRAIN_TOKEN                secret that the ranks of a job share; never on a command line
//   DSTRAIN_JOB DSTRAIN_RESTART  which job this is, the same for all its attempts, and how many
//                                there were before this one; absent: a job of its own
//   DSTRAIN_MACHINE              MachineFacts of the job, one line of JSON; absent: the ranks find
//   out
//                                when they meet (rank_meeting.h)
//   DSTRAIN_GPU                  which of its host's GPUs the rank has; CUDA_VISIBLE_DEVICES then
//                                shows it that one alone. Absent: with LOCAL_RANK n the n-th that
//                                CUDA_VISIBLE_DEVICES shows, as with torchrun
//   DSTRAIN_RANKS_ON_GPU         how many ranks take turns on it; absent: 1
//   DSTRAIN_SHARE_GPUS           1: where ranks find out themselves, they may share GPUs
//   DSTRAIN_THREADS              compute threads of this rank
//   DSTRAIN_PROGRESS             none | lines | terminal
//   DSTRAIN_COLLECTIVE_TIMEOUT   seconds that a rank waits for the others in one collective
//   DSTRAIN_LIFELINE             1: stdin is a lifeline (lifeline.h)
//   DSTRAIN_STATUS_FD            an open file: the page to say there what the rank does
//                                (launcher/supervision/status_page.h); set by whoever forks the
//                                rank
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/config/machine_facts.h"
#include "engine/train/run_training.h"

namespace dstrain {

constexpr const char* kTokenVariable = "DSTRAIN_TOKEN";
/// Takes its place between a launcher and an agent that both know a secret (job_secret.h).
constexpr const char* kTokenSaltVariable = "DSTRAIN_TOKEN_SALT";
/// The value of DSTRAIN_LISTEN_ADDRESS that means every address.
constexpr const char* kListenOnAll = "all";

struct RankEnv {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_size = 1;
  int cross_rank = 0;
  int cross_size = 1;
  std::string master_address;
  std::uint16_t master_port = 0;
  std::string listen_address;
  std::string own_address;
  std::string token;
  std::string job;  ///< empty: nobody said
  int restart = 0;
  std::optional<MachineFacts> machine;  ///< empty: to be found out
  int gpu = -1;                         ///< -1: nobody said
  int ranks_on_gpu = 1;
  bool may_share_gpus = false;
  int threads = 0;                   ///< 0: as many as the process may run on
  std::optional<Progress> progress;  ///< empty: nobody said
  bool has_lifeline = false;
  int collective_timeout_s = 0;  ///< 0: nobody said

  bool operator==(const RankEnv&) const = default;
};

using EnvironmentLookup = std::function<std::optional<std::string>(const char* name)>;

/// Names and values, for the launcher to set.
std::vector<std::pair<std::string, std::string>> to_env(const RankEnv& env);
/// Throws ConfigError, naming the variable, if one is missing or makes no sense.
RankEnv from_env(const EnvironmentLookup& lookup);
/// The variables of this process.
std::optional<std::string> process_environment(const char* name);

}  // namespace dstrain
