// VisitHooks: called around each visit of a walk over the model. They do nothing where all
// parameters are whole all the time; otherwise a data-parallel strategy has them gathered by then.
#pragma once

#include "engine/plan/unit_walk.h"

namespace dstrain {

class VisitHooks {
 public:
  VisitHooks() = default;
  VisitHooks(const VisitHooks&) = delete;
  VisitHooks& operator=(const VisitHooks&) = delete;
  virtual ~VisitHooks() = default;

  /// Called before and after a visit computes; what it reads is whole in between.
  virtual void before_visit(const UnitVisit& /*visit*/) {}
  virtual void after_visit(const UnitVisit& /*visit*/) {}
};

}  // namespace dstrain
