// ReplicaCheck: checks that the parts of the training state that exist more than once (StateCopies)
// are still the same, bit for bit. A bit that flipped in one rank's memory would otherwise stay in
// training and be saved, without the loss showing it.
//
// Each rank sums up the bits of what it has copies of (kernels/math/bit_sums.h), at the speed of
// its memory; one all-gather of about 100 bytes a rank then shows every rank whether all agree.
// Only where they do not agree do they exchange all sums, and find unit and ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/state_copies.h"
#include "engine/train/engine.h"
#include "engine/train/replica_difference.h"
#include "kernels/math/bit_sums.h"

namespace dstrain {

class ReplicaCheck {
 public:
  /// `engine` outlives it.
  explicit ReplicaCheck(Engine& engine);

  /// Whether this run has anything to compare; the same on every rank.
  [[nodiscard]] bool has_work() const { return has_work_; }

  /// The same on every rank.
  struct Result {
    std::optional<ReplicaDifference> difference;
    /// The time that a check takes: the slowest rank's sums, and the exchange of the check before,
    /// on the rank that had to wait least for others.
    double seconds = 0.0;
    double step_seconds = 0.0;  ///< the shortest that a rank gave
  };
  /// Collective. No update may be under way. `step_seconds` is the time that a step takes on this
  /// rank.
  Result run(double step_seconds);

 private:
  struct Sum {
    StateSegment segment;
    bool of_cast = false;  ///< of what masters round to
    BitSums value{};
  };
  /// The sums over the part of a unit in a region that one kind of holders has.
  struct Entry {
    CopyHolders holders = CopyHolders::kData;
    int unit = 0;
    RegionKind region = RegionKind::kParameters;
    BitSums sums{};
  };

  void take_sums();
  [[nodiscard]] std::vector<Entry> entries() const;
  void add_untrained(std::vector<Entry>& entries) const;
  /// The units whose parameters are not what their masters round to.
  [[nodiscard]] std::vector<int> broken_units() const;
  [[nodiscard]] bool really_differs(int unit) const;
  [[nodiscard]] std::uint64_t fp8_sum() const;
  /// The number of a rank's group: ranks with the same number hold the same; -1: this one has no
  /// such copies.
  [[nodiscard]] int group_of(CopyHolders holders, int rank) const;
  ReplicaDifference ask_around(const std::vector<Entry>& entries,
                               const std::vector<int>& broken,
                               std::uint64_t fp8);

  Engine& engine_;
  std::vector<Sum> sums_;
  std::vector<BitSums> fetched_;
  double exchange_seconds_ = 0.0;  ///< of the check before
  bool has_work_ = false;
};

}  // namespace dstrain
