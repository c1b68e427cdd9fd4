// GradientProbe: looks for the first gradient that is not finite, before any reduction mixes it
// with those of other ranks. It stands between the model and its data-parallel strategy to repeat a
// step that failed: parameters are gathered as usual, but nothing is reduced and nothing updated.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/parallel/data_parallel.h"

namespace dstrain {

class GradientProbe final : public DataParallel {
 public:
  /// `inner` and what `parts` refers to outlive this.
  GradientProbe(DataParallel& inner, const DataParallelParts& parts)
      : inner_(inner),
        parts_(parts),
        targets_(static_cast<std::size_t>(parts.shards.num_units())) {}

  struct Finding {
    std::int64_t micro_batch = 0;
    int unit = 0;
    int param = 0;  ///< index within the unit
  };
  [[nodiscard]] const std::optional<Finding>& finding() const { return finding_; }

  void begin_walk(int walk, bool last) override { inner_.begin_walk(walk, last); }
  void before_visit(const UnitVisit& visit) override { inner_.before_visit(visit); }
  void after_visit(const UnitVisit& visit) override { inner_.after_visit(visit); }
  /// Treats each micro-batch alone, as if it were the first.
  GradTarget grad_target(int unit, std::int64_t /*micro_batch*/) override;
  void unit_grads_ready(int unit, std::int64_t micro_batch, bool last) override;
  StepStats step(const StepParams& params) override;
  void refresh_parameters() override { inner_.refresh_parameters(); }

 private:
  DataParallel& inner_;
  DataParallelParts parts_;
  std::vector<GradTarget> targets_;  // by unit
  std::optional<Finding> finding_;
};

}  // namespace dstrain
