#include "engine/optim/unit_segments.h"

namespace dstrain {

UnitSegments::UnitSegments(const Blueprint& blueprint, DecayRule rule, Join join) {
  for (const UnitDecl& unit : blueprint.units()) {
    std::vector<UnitSegment> segments;
    std::int64_t offset = 0;
    for (int index = 0; index < static_cast<int>(unit.params.size()); ++index) {
      const ParamDecl& param = unit.params[static_cast<std::size_t>(index)];
      const std::int64_t end = offset + param.local_shape().numel();
      const bool decays = rule == DecayRule::kAll || param.decays;
      const bool joins = join == Join::kAlike && !segments.empty() &&
                         segments.back().decays == decays &&
                         segments.back().rate_scale == param.rate_scale &&
                         segments.back().hidden_matrix == param.hidden_matrix;
      if (joins) {
        segments.back().range.end = end;
      } else {
        segments.push_back({.first_param = index,
                            .range = {offset, end},
                            .decays = decays,
                            .rate_scale = param.rate_scale,
                            .hidden_matrix = param.hidden_matrix});
      }
      offset = end;
    }
    segments_.push_back(std::move(segments));
  }
}

OptimizerTensors tensors_of(const UnitState& state, Range part, const UpdateParams& params) {
  return {.gradient = part_of(state.gradient, state.range, part),
          .master = part_of(state.master, state.range, part),
          .first_moment = part_of(state.first_moment, state.range, part),
          .second_moment = part_of(state.second_moment, state.range, part),
          .third_moment = part_of(state.third_moment, state.range, part),
          .parameters = part_of(state.parameters, state.range, part),
          .noise = noise_of(state.noise_key, part.begin, params)};
}

}  // namespace dstrain
