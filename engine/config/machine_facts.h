// MachineFacts: the facts about the machines of a run that "auto" values depend on. Facts, not
// choices: the launcher gathers them once and every rank is handed the same ones, so that all of
// them resolve a config alike, whatever differs between their hosts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace dstrain {

/// For several ranks: what holds for each of them, and the least memory. The default assumes
/// nothing: a CPU without units for 16-bit products.
struct MachineFacts {
  bool cuda = false;             ///< ranks compute on GPUs
  std::string name;              ///< "NVIDIA H100 80GB HBM3"; of CPUs "AMD EPYC 9R45"; for origins
  bool multiplies_bf16 = false;  ///< in units made for it: GPUs from 8.0, AMX, AVX-512 BF16
  bool multiplies_f16 = false;   ///< in units made for it: GPUs from 7.0
  std::optional<std::int64_t> memory_bytes;  ///< that a rank may use; absent: not known
  /// The ranks of a host, which are neighbours in the world, where all hosts have as many. Absent:
  /// they do not, or it is not known.
  std::optional<int> ranks_per_host{};

  bool operator==(const MachineFacts&) const = default;
};

/// MachineFacts::ranks_per_host of hosts with so many ranks each.
inline std::optional<int> common_ranks(const std::vector<int>& of_hosts) {
  const bool differ =
      std::adjacent_find(of_hosts.begin(), of_hosts.end(), std::not_equal_to<>()) != of_hosts.end();
  return of_hosts.empty() || differ ? std::nullopt : std::optional(of_hosts.front());
}

}  // namespace dstrain
