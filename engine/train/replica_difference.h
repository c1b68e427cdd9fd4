// ReplicaDifference: finds which copies of the training state are not the same, and whose are
// likely wrong, from what all ranks report of theirs. Pure: replica_check.h collects the reports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "kernels/math/bit_sums.h"

namespace dstrain {

struct ReplicaDifference {
  std::string unit;                ///< "blocks.3"; empty: no unit's
  std::string what;                ///< "parameters"
  std::vector<int> wrong;          ///< ranks, ascending; several where it is unclear which
  std::vector<std::string> hosts;  ///< theirs
  std::vector<int> agreeing;       ///< the other holders, which agree
  /// True where the rank's parameters are not what its masters round to, which shows without any
  /// other rank.
  bool is_own = false;

  /// "rank 5 (host b) has other parameters of blocks.3 than ranks 1, 9 and 13".
  [[nodiscard]] std::string sentence() const;
  friend bool operator==(const ReplicaDifference&, const ReplicaDifference&) = default;
};
void to_json(nlohmann::json& json, const ReplicaDifference& difference);
void from_json(const nlohmann::json& json, ReplicaDifference& difference);

/// The copies that one rank has.
struct HeldCopies {
  struct Entry {
    std::string group;  ///< of ranks that must have the same of it
    std::string unit;
    std::string what;
    BitSums sums;
  };
  std::string host;
  std::vector<Entry> entries;
  /// Units whose parameters are not what the rank's masters round to.
  std::vector<std::string> broken_units;
};
void to_json(nlohmann::json& json, const HeldCopies& held);
void from_json(const nlohmann::json& json, HeldCopies& held);

/// Takes the copies by rank, of which some differ. Where several groups hold the same part of a
/// unit, it returns the ranks that all of them suspect.
ReplicaDifference find_difference(const std::vector<HeldCopies>& held);

}  // namespace dstrain
