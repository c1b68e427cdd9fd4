#include "engine/optim/unit_segments.h"

namespace dstrain {

UnitSegments::UnitSegments(const Blueprint& blueprint) {
  for (const UnitDecl& unit : blueprint.units()) {
    std::vector<UnitSegment> segments;
    std::int64_t offset = 0;
    for (const ParamDecl& param : unit.params) {
      const std::int64_t end = offset + param.shape.numel();
      if (!segments.empty() && segments.back().decays == param.decays &&
          segments.back().hidden_matrix == param.hidden_matrix) {
        segments.back().range.end = end;
      } else {
        segments.push_back({{offset, end}, param.decays, param.hidden_matrix});
      }
      offset = end;
    }
    segments_.push_back(std::move(segments));
  }
}

}  // namespace dstrain
