#include "engine/optim/adamw.h"

#include <algorithm>
#include <cmath>

namespace dstrain {

AdamW::AdamW(const OptimizerConfig& config, const Blueprint& blueprint) : config_(config) {
  for (const UnitDecl& unit : blueprint.units()) {
    std::vector<Segment> segments;
    std::int64_t offset = 0;
    for (const ParamDecl& param : unit.params) {
      const std::int64_t end = offset + param.shape.numel();
      if (!segments.empty() && segments.back().decays == param.decays) {
        segments.back().range.end = end;
      } else {
        segments.push_back({{offset, end}, param.decays});
      }
      offset = end;
    }
    segments_.push_back(std::move(segments));
  }
}

void AdamW::update(const ExecContext& context,
                   int unit,
                   Range range,
                   const Tensors& tensors,
                   double learning_rate,
                   std::int64_t update,
                   float gradient_scale) const {
  const auto correction = [&](double beta) {
    return config_.bias_correction ? 1.0 - std::pow(beta, static_cast<double>(update)) : 1.0;
  };
  AdamwStep step{.learning_rate = static_cast<float>(learning_rate),
                 .beta1 = static_cast<float>(config_.beta1),
                 .beta2 = static_cast<float>(config_.beta2),
                 .epsilon = static_cast<float>(config_.epsilon),
                 .weight_decay = 0.0F,
                 .bias_correction1 = static_cast<float>(correction(config_.beta1)),
                 .bias_correction2 = static_cast<float>(correction(config_.beta2)),
                 .gradient_scale = gradient_scale};
  for (const Segment& segment : segments_.at(static_cast<std::size_t>(unit))) {
    const std::int64_t begin = std::max(range.begin, segment.range.begin);
    const std::int64_t end = std::min(range.end, segment.range.end);
    if (begin >= end) {
      continue;
    }
    step.weight_decay = segment.decays ? static_cast<float>(config_.weight_decay) : 0.0F;
    context.ops.adamw(step, tensors.gradient.flat(begin, end), tensors.master.flat(begin, end),
                      tensors.exp_avg.flat(begin, end), tensors.exp_avg_sq.flat(begin, end),
                      tensors.parameters.empty() ? Tensor{} : tensors.parameters.flat(begin, end),
                      context.compute);
  }
}

}  // namespace dstrain
