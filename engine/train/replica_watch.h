// ReplicaWatch: decides when a run's replicas are compared, and what happens where they differ.
// They are compared at an interval (training.replica_check_interval), just before an update, since
// that rewrites most of what is held twice; and before every save, so that no state goes to disk
// that a check would have found wrong.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/train/replica_check.h"

namespace dstrain {

class ReplicaWatch {
 public:
  /// With an interval of "auto", checks may take this share of the time.
  static constexpr double kShareOfTime = 1e-3;

  /// `interval` is training.replica_check_interval, `step` the steps done so far. `engine` outlives
  /// it.
  ReplicaWatch(Engine& engine, std::optional<std::int64_t> interval, std::int64_t step);

  /// Whether `step` is to be checked before its update.
  [[nodiscard]] bool is_due(std::int64_t step) const;
  /// Compares now, all ranks at once. `step` is under way, or just done. `saved_step` is that of
  /// the newest checkpoint; -1: there is none. Throws StateCorrupted.
  void check(std::int64_t step, std::int64_t saved_step);
  /// Notes how long a step took, checks included.
  void add_step(double seconds);

 private:
  void set_pace(const ReplicaCheck::Result& result, std::int64_t step);

  Engine& engine_;
  ReplicaCheck check_;
  std::optional<std::int64_t> interval_;  ///< none: measured
  bool is_on_;
  std::int64_t next_ = 0;     ///< step, where it is measured
  bool has_pace_ = false;     ///< likewise: it has been logged
  std::int64_t last_ = -1;    ///< step of the last check
  double check_seconds_ = 0;  ///< of checks since the last step
  double step_seconds_ = 0;   ///< of the last step, without checks
};

}  // namespace dstrain
