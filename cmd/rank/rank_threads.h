// Decides how many threads a rank computes with: one rule for the launcher, which shares a machine
// out among its ranks, for a rank that something else started, and for the estimate of their
// memory.
//
//   training.threads     of the config has the last word
//   DSTRAIN_THREADS      the launcher has applied this rule already
//   OMP_NUM_THREADS      of the launcher's environment, or of the rank's
//   otherwise            the rank's share of the cores that may be used
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cmd/rank/rank_env.h"
#include "engine/base/usable_cores.h"
#include "engine/config/config.h"

namespace dstrain {

/// The number that somebody asked for, for each rank.
struct ThreadWish {
  std::optional<int> config;       ///< training.threads
  std::optional<int> environment;  ///< OMP_NUM_THREADS

  [[nodiscard]] std::optional<int> threads() const { return config ? config : environment; }
  /// A sentence where the environment decides, or would have decided otherwise.
  [[nodiscard]] std::optional<std::string> notice() const;
};
/// Throws ConfigError where OMP_NUM_THREADS makes no sense.
ThreadWish thread_wish(const TrainingConfig& training, const EnvironmentLookup& lookup);
/// The first number of OMP_NUM_THREADS; those after it are for parallel loops inside parallel
/// loops, of which there are none. Throws ConfigError.
std::optional<int> omp_num_threads(const EnvironmentLookup& lookup);

/// The share of rank `index` of `ranks` in `cores` cores: as equal as possible, and at least one.
int share_of_threads(int cores, int index, int ranks);

struct RankThreads {
  int number = 1;
  std::vector<std::string> notices;
  std::optional<std::string> warning;
};
/// The threads of this rank. `cores` are its process's, `machine_cores` all that the machine has:
/// if they are fewer, somebody has given each rank its own; otherwise the ranks of a host share
/// them, as torchrun and a plain mpirun leave it to them.
RankThreads rank_threads(const RankEnv& env,
                         const ThreadWish& wish,
                         const UsableCores& cores,
                         int machine_cores);

/// The threads of each rank on a host like this one with `ranks_per_host` ranks.
int estimated_threads(const Config& config, int ranks_per_host);

}  // namespace dstrain
