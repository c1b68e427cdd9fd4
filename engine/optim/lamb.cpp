// LAMB (You et al. 2020): Adam's direction, scaled for each tensor by ‖tensor‖ / ‖direction‖
// (kernels/math/lamb.h). A rank holds pieces of tensors, so the norms go round once:
//   all units: moments, sums of squares of my pieces -> all-reduce -> all units: parameters
// The direction is computed twice rather than kept, since keeping it would take the memory of a
// third moment. On the wire: 16 bytes a tensor and update.
#include <numeric>

#include "engine/optim/optimizer_kinds.h"
#include "engine/optim/unit_segments.h"

namespace dstrain {
namespace {

class Lamb final : public Optimizer {
 public:
  explicit Lamb(const OptimizerParts& parts)
      : parts_(parts), tensors_(parts.blueprint, parts.config.decay, Join::kNever) {
    const std::vector<UnitDecl>& units = parts.blueprint.units();
    first_tensor_.resize(units.size());
    std::int64_t tensors = 0;
    for (std::size_t group = 0; group < parts.groups.groups().size(); ++group) {
      const std::int64_t first = tensors;
      for (std::size_t unit = 0; unit < units.size(); ++unit) {
        if (parts.groups.index_of(static_cast<int>(unit)) == group) {
          first_tensor_[unit] = tensors;
          tensors += static_cast<std::int64_t>(units[unit].params.size());
        }
      }
      of_groups_.push_back({first, tensors});
    }
  }

  void update(const Site& site,
              std::span<const UnitState> units,
              const UpdateParams& params,
              const UnitUpdated& updated) override {
    const Tensor squares = site.buffer(parts_.scratch.buffers.at(0));
    site.ops.zero(squares, site.stream);  // of tensors that lie elsewhere
    for (const UnitState& unit : units) {
      for_each_piece(unit, params,
                     [&](const LambStep& step, const OptimizerTensors& piece, std::int64_t tensor) {
                       site.ops.lamb_moments(step, piece, squares.flat(2 * tensor, 2 * tensor + 2),
                                             site.stream);
                     });
    }
    sum_over_slices(squares, site);
    for (std::size_t i = 0; i < units.size(); ++i) {
      for_each_piece(units[i], params,
                     [&](const LambStep& step, const OptimizerTensors& piece, std::int64_t tensor) {
                       site.ops.lamb_apply(step, piece, squares.flat(2 * tensor, 2 * tensor + 2),
                                           site.stream);
                     });
      updated(i);
    }
  }

 private:
  /// Sums group by group, over the tensors whose units are cut among the group's ranks.
  void sum_over_slices(Tensor squares, const Site& site) const {
    for (std::size_t index = 0; index < of_groups_.size(); ++index) {
      const UnitGroup& group = parts_.groups.groups()[index];
      const Range tensors = of_groups_[index];
      if (parts_.states.cuts(group.axes) && tensors.size() > 0) {
        group.replicas->all_reduce(squares.flat(2 * tensors.begin, 2 * tensors.end), ReduceOp::kSum,
                                   Purpose::kOptimizer, site.stream);
      }
    }
  }

  /// Calls use(step, piece, index of the tensor among all) for each tensor that `unit` has a piece
  /// of.
  template <typename Use>
  void for_each_piece(const UnitState& unit, const UpdateParams& params, const Use& use) const {
    LambStep step = step_of(params);
    for (const UnitSegment& tensor : tensors_.of(unit.unit)) {
      const Range part = intersection(unit.range, tensor.range);
      if (part.size() > 0) {
        step.learning_rate = params.learning_rate * tensor.rate_scale;
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
  std::vector<std::int64_t> first_tensor_;  // of a unit, among all tensors: group after group
  std::vector<Range> of_groups_;            // their tensors
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
  check(parts.states.space == Space::kDevice, "LAMB's scratch and its group are the device's");
  return std::make_unique<Lamb>(parts);
}

}  // namespace dstrain
