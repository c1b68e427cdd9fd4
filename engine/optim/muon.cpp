// Muon (Jordan et al. 2024): the matrices inside blocks move along their momentum made orthogonal;
// everything else is AdamW's. Of each unit:
//   elements of my slice: momentum and update u (matrices), AdamW (the rest)
//   u of all slices -> all-gather; whole matrices that my slice touches -> orthogonal; my part
//   moves
// Every rank that holds a part of a matrix makes the whole matrix orthogonal, so that the bits are
// those of an unsharded run. Gradients are clipped before their momentum, as in every optimizer
// here. DeepSpeed makes the update orthogonal while it reduces gradients and clips the result: then
// the norm is about the root of the sum of all matrices' ranks, whatever the gradients were, and
// the limit divides muon_lr by it (and fp16's loss scale does so once more). That is a learning
// rate that depends on the size of the model, so it is not followed. Per parameter: one moment of a
// matrix, two of the rest. Scratch: u of the largest unit and what Orthogonalizer takes. On the
// wire: (dp-1)/dp × 4 bytes (bf16: 2) a parameter of units with matrices, each update.
#include <algorithm>
#include <cmath>

#include "engine/optim/optimizer_kinds.h"
#include "engine/optim/orthogonalize.h"
#include "engine/optim/unit_segments.h"

namespace dstrain {
namespace {

bool has_matrices(const UnitDecl& unit) {
  return std::any_of(unit.params.begin(), unit.params.end(),
                     [](const ParamDecl& param) { return param.hidden_matrix; });
}

class Muon final : public Optimizer {
 public:
  explicit Muon(const OptimizerParts& parts)
      : parts_(parts),
        update_(parts.scratch.buffers.at(0)),
        orthogonalizer_({parts.scratch.buffers.begin() + 1, parts.scratch.buffers.end()}),
        segments_(parts.blueprint, parts.config.decay, Join::kAlike),
        tensors_(parts.blueprint, parts.config.decay, Join::kNever) {}

  void update(const Site& site,
              std::span<const UnitState> units,
              const UpdateParams& params,
              const UnitUpdated& updated) override {
    for (const UnitState& unit : units) {
      update_elements(site, unit, params);
      if (has_matrices(decl_of(unit))) {
        gather_update(site, unit);
        move_matrices(site, unit, params);
      }
    }
    // Units are reported only now: the callback gathers parameters, by the same group and on
    // another stream.
    for (std::size_t i = 0; i < units.size(); ++i) {
      updated(i);
    }
  }

 private:
  [[nodiscard]] const UnitDecl& decl_of(const UnitState& unit) const {
    return parts_.blueprint.units().at(static_cast<std::size_t>(unit.unit));
  }

  /// Updates the momentum of the matrices, and does all of AdamW. The second moment holds only the
  /// elements of the latter.
  void update_elements(const Site& site, const UnitState& unit, const UpdateParams& params) const {
    const OptimizerConfig& config = parts_.config;
    const MuonStep momentum{.momentum = config.momentum,
                            .nesterov = config.nesterov,
                            .gradient_scale = params.gradient_scale};
    const double adam_rate = rate(config.adam_lr, params);
    AdamwStep adamw = adamw_step(config, params, adam_rate);
    UnitState without_second = unit;
    without_second.second_moment = {};
    std::int64_t second_offset = 0;
    for (const UnitSegment& segment : segments_.of(unit.unit)) {
      const Range part = intersection(unit.range, segment.range);
      if (part.size() == 0) {
        continue;
      }
      OptimizerTensors tensors = tensors_of(without_second, part, params);
      if (segment.hidden_matrix) {
        site.ops.muon_momentum(momentum, tensors.gradient, tensors.first_moment,
                               site.buffer(update_).flat(part.begin, part.end), site.stream);
        continue;
      }
      tensors.second_moment = unit.second_moment.flat(second_offset, second_offset + part.size());
      second_offset += part.size();
      adamw.learning_rate = adam_rate * segment.rate_scale;
      adamw.weight_decay = segment.decays ? config.weight_decay : 0.0;
      site.ops.update(adamw, tensors, site.stream);
    }
  }

  /// Gathers the update of the whole unit from every rank's slice of it.
  void gather_update(const Site& site, const UnitState& unit) const {
    const ShardMap& shards = parts_.shards;
    if (!parts_.states.cuts(shards.unit(unit.unit).replicated)) {
      return;
    }
    const Range slice = shards.own_slice(unit.unit);
    check(unit.range == intersection(slice, {0, shards.numel(unit.unit)}) || unit.range.size() == 0,
          "Muon is given [{}, {}) of unit {}, which is not the rank's slice", unit.range.begin,
          unit.range.end, unit.unit);
    const Tensor whole = site.buffer(update_).flat(0, shards.padded_numel(unit.unit));
    parts_.groups.replicas(unit.unit).all_gather(whole.flat(slice.begin, slice.end), whole,
                                                 Purpose::kOptimizer, site.stream);
  }

  void move_matrices(const Site& site, const UnitState& unit, const UpdateParams& params) const {
    UnitState without_moments = unit;
    without_moments.first_moment = without_moments.second_moment = {};
    for (const UnitSegment& matrix : tensors_.of(unit.unit)) {
      const Range part = intersection(unit.range, matrix.range);
      if (!matrix.hidden_matrix || part.size() == 0) {
        continue;
      }
      const Shape& shape = decl_of(unit).params[static_cast<std::size_t>(matrix.first_param)].shape;
      const ConstTensor direction = orthogonalizer_.orthogonalize(
          site, site.buffer(update_).flat(matrix.range.begin, matrix.range.end).view(shape));
      // Without momentum SGD's step is p - rate · (scale · direction + decay · p).
      OptimizerTensors tensors = tensors_of(without_moments, part, params);
      tensors.gradient = part_of(direction, matrix.range, part);
      site.ops.update(
          SgdStep{.learning_rate = rate(parts_.config.muon_lr, params) * matrix.rate_scale,
                  .weight_decay = matrix.decays ? parts_.config.weight_decay : 0.0,
                  .gradient_scale = shape_scale(shape)},
          tensors, site.stream);
    }
  }

  /// Tall matrices move further: the root of rows / columns.
  static double shape_scale(const Shape& shape) {
    return std::sqrt(std::max(1.0, static_cast<double>(shape[0]) / static_cast<double>(shape[1])));
  }

  /// A rate of its own follows the schedule in proportion.
  [[nodiscard]] double rate(std::optional<double> own, const UpdateParams& params) const {
    const double configured = parts_.config.learning_rate;
    if (!own) {
      return params.learning_rate;
    }
    return configured == 0.0 ? *own : params.learning_rate * (*own / configured);
  }

  OptimizerParts parts_;
  BufferRef update_;
  Orthogonalizer orthogonalizer_;
  UnitSegments segments_;
  UnitSegments tensors_;
};

}  // namespace

OptimizerScratch declare_muon(const ShardMap& shards, DType compute, Blueprint& blueprint) {
  // f16 has too small a range for gradients that are not scaled.
  const DType dtype = compute == DType::kBF16 ? DType::kBF16 : DType::kF32;
  std::int64_t largest = 0;
  for (int unit = 0; unit < shards.num_units(); ++unit) {
    if (has_matrices(blueprint.units().at(static_cast<std::size_t>(unit)))) {
      largest = std::max(largest, shards.padded_numel(unit));
    }
  }
  OptimizerScratch scratch{
      {blueprint.add_buffer({"muon_update", {largest}, dtype, Lifetime::kScratch})}};
  const std::vector<BufferRef> own = Orthogonalizer::declare(dtype, blueprint);
  scratch.buffers.insert(scratch.buffers.end(), own.begin(), own.end());
  return scratch;
}

std::unique_ptr<Optimizer> make_muon(const OptimizerParts& parts) {
  check(parts.states.space == Space::kDevice, "Muon's scratch and its group are the device's");
  return std::make_unique<Muon>(parts);
}

}  // namespace dstrain
