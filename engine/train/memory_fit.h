// MemoryFit: whether a run fits into the memory that a rank has, and, as far as that is known, into
// what its hosts have; if not, which changes of the config would make it fit, cheapest first, each
// planned as the run itself would be; if it does, how large a micro-batch would; and how long a
// sequence would.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/config_json.h"
#include "engine/train/accelerators.h"
#include "engine/train/run_plan.h"
#include "engine/train/step_price.h"

namespace dstrain {

/// The config, resolved, with these --set's after those that it was loaded with. Throws
/// ConfigError.
using ConfigWith = std::function<LoadedConfig(const std::vector<std::string>& overrides)>;
/// Bytes of the rank that a plan is for.
using BytesOf = std::function<std::int64_t(const RunPlan& plan)>;

/// The room that a host has for its ranks, which are numbered host by host. Absent: not known.
struct HostRoom {
  int ranks = 1;
  std::optional<std::int64_t> memory_bytes{};  ///< for all that its ranks take of it
  std::optional<std::int64_t> disk_bytes{};    ///< free where the run offloads to, or would
};

struct FitQuestion {
  ConfigWith config_with;
  int world_size = 1;
  MemoryLimit limit;
  BytesOf overhead;  ///< that libraries take on the device beside the plan
  Cluster cluster;
  /// The host's memory that a rank takes, all that lies there: on a CPU that is the device's. Empty
  /// where the question is of the device alone.
  BytesOf host_bytes{};
  /// All of them; empty: hosts of Cluster::ranks_per_host ranks, of which nothing is known.
  std::vector<HostRoom> hosts{};
};

struct Remedy {
  std::vector<std::string> overrides;  ///< of --set
  std::string what;                    ///< "recompute blocks in full, ZeRO stage 3"
  std::int64_t bytes = 0;              ///< of the rank that holds most, overhead included
  std::int64_t host_bytes = 0;         ///< of the host whose ranks take most of its memory
  std::int64_t disk_bytes = 0;         ///< of the host whose ranks keep most on its disk
  /// It takes more of them than the config as it is, and what a host has is not known.
  bool host_unchecked = false;
  bool disk_unchecked = false;
  double relative_step_time = 1.0;  ///< predicted, of the config as it is
};

struct MemoryFit {
  std::int64_t bytes = 0;       ///< of the rank that holds most, overhead included
  std::int64_t host_bytes = 0;  ///< as in Remedy
  std::int64_t disk_bytes = 0;
  /// The bytes that the host with least to spare lacks; 0: none, as far as is known.
  std::int64_t host_bytes_lacking = 0;
  std::int64_t disk_bytes_lacking = 0;
  bool fits = false;
  /// Where it does not fit: the smallest changes that make it fit, cheapest first. Empty: none of
  /// those that were tried does.
  std::vector<Remedy> remedies;
  /// Where it fits: the largest micro-batch, in sequences, with the accumulation as it is, and the
  /// largest that keeps the step's batch.
  std::int64_t largest_micro_batch = 0;
  std::int64_t largest_of_this_batch = 0;
  /// The longest sequence, in tokens, that fits with all else as it is, micro-batch included; the
  /// next length that divides as the layout needs does not. 0: none that the config allows does.
  /// Found by bisection: where a longer sequence gets smaller chunks of logits (loss_head.cpp), a
  /// length beyond may fit again.
  std::int64_t longest_sequence = 0;
  /// The next length is refused by the config, as beyond the model's positions, whatever the
  /// memory.
  bool config_allows_no_longer = false;
};

MemoryFit examine_fit(const FitQuestion& question);

/// The bytes of the rank that holds most, overhead included, which examine_fit() compares.
std::int64_t most_bytes(const Config& config, int world_size, const BytesOf& overhead);

}  // namespace dstrain
