// LAMB (You et al. 2020): Adam's direction, scaled for each tensor by ‖tensor‖ / ‖direction‖
// (kernels/math/lamb.h). A rank holds pieces of tensors, so the norms go round once:
//   all units: moments, sums of squares of my pieces -> all-reduce -> all units: parameters
// The direction is computed twice rather than kept, which would take a third moment's memory.
// On the wire: 16 bytes a tensor and update.
#include <numeric>

#include "engine/optim/optimizer_kinds.h"
#include "engine/optim/unit_segments.h"

namespace dstrain {
namespace {

class Lamb final : public Optimizer {
 public:
  explicit Lamb(const OptimizerParts& parts)
      : parts_(parts), tensors_(parts.blueprint, parts.config.decay, Join::kNever) {
    first_tensor_.push_back(0);
    for (const UnitDecl& unit : parts.blueprint.units()) {
      first_tensor_.push_back(first_tensor_.back() + static_cast<std::int64_t>(unit.params.size()));
    }
  }

  void update(const ExecContext& context,
              std::span<const UnitState> units,
              const UpdateParams& params,
              const UnitUpdated& updated) override {
    const Tensor squares = context.buffer(parts_.scratch.buffers.at(0));
    context.ops.zero(squares, context.compute);  // of tensors that lie elsewhere
    for (const UnitState& unit : units) {
      for_each_piece(unit, params,
                     [&](const LambStep& step, const OptimizerTensors& piece, std::int64_t tensor) {
                       context.ops.lamb_moments(
                           step, piece, squares.flat(2 * tensor, 2 * tensor + 2), context.compute);
                     });
    }
    if (parts_.sharded) {
      parts_.group.all_reduce(squares, ReduceOp::kSum, Purpose::kOptimizer, context.compute);
    }
    for (std::size_t i = 0; i < units.size(); ++i) {
      for_each_piece(units[i], params,
                     [&](const LambStep& step, const OptimizerTensors& piece, std::int64_t tensor) {
                       context.ops.lamb_apply(step, piece, squares.flat(2 * tensor, 2 * tensor + 2),
                                              context.compute);
                     });
      updated(i);
    }
  }

 private:
  /// use(step, piece, index of the tensor among all) for each tensor that `unit` has a piece of.
  template <typename Use>
  void for_each_piece(const UnitState& unit, const UpdateParams& params, const Use& use) const {
    LambStep step = step_of(params);
    for (const UnitSegment& tensor : tensors_.of(unit.unit)) {
      const Range part = intersection(unit.range, tensor.range);
      if (part.size() > 0) {
        step.weight_decay = tensor.decays ? parts_.config.weight_decay : 0.0;
        use(step, tensors_of(unit, part, params),
            first_tensor_.at(static_cast<std::size_t>(unit.unit)) + tensor.first_param);
      }
    }
  }

  [[nodiscard]] LambStep step_of(const UpdateParams& params) const {
    const OptimizerConfig& config = parts_.config;
    const double beta1 = params.beta1.value_or(config.beta1);
    const double beta2 = params.beta2.value_or(config.beta2);
    return {.learning_rate = params.learning_rate,
            .beta1 = beta1,
            .beta2 = beta2,
            .epsilon = config.epsilon,
            .eps_inside_sqrt = config.eps_inside_sqrt,
            .bias_correction1 = bias_correction(config, beta1, params.update),
            .bias_correction2 = bias_correction(config, beta2, params.update),
            .max_coeff = config.max_coeff,
            .min_coeff = config.min_coeff,
            .gradient_scale = params.gradient_scale};
  }

  OptimizerParts parts_;
  UnitSegments tensors_;
  std::vector<std::int64_t> first_tensor_;  // of a unit, among all tensors
};

}  // namespace

OptimizerScratch declare_lamb(Blueprint& blueprint) {
  const auto tensors =
      std::accumulate(blueprint.units().begin(), blueprint.units().end(), std::int64_t{0},
                      [](std::int64_t total, const UnitDecl& unit) {
                        return total + static_cast<std::int64_t>(unit.params.size());
                      });
  return {{blueprint.add_buffer({"lamb_squares", {2 * tensors}, DType::kF64, Lifetime::kScratch})}};
}

std::unique_ptr<Optimizer> make_lamb(const OptimizerParts& parts) {
  return std::make_unique<Lamb>(parts);
}

}  // namespace dstrain
