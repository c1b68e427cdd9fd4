// ZeRO stage 0, plain data parallelism: every rank holds all parameters, gradients and optimizer
// states, and sees its own part of the batch.
// Per parameter, f32:  4 parameter + 4 gradient + 8 Adam = 16 bytes;
//                bf16: 2 parameter + 4 master + 4 gradient + 8 Adam = 18 bytes.
// Order of events in one step:
//   each micro-batch adds into the gradients; in the last one,
//   backward leaves unit u -> all-reduce of u's gradients, while backward goes on with u-1
//   wait for all of them -> global norm -> clip factor -> AdamW on everything.
// On the wire: 2 (dp-1)/dp × 4 bytes per parameter and step (ring all-reduce), nothing per
// micro-batch.
#include <cmath>
#include <vector>

#include "engine/optim/grad_norm.h"
#include "engine/parallel/data_parallel.h"

namespace dstrain {
namespace {

class Zero0 final : public DataParallel {
 public:
  Zero0(const DataParallelParts& parts, const ZeroConfig& config)
      : parts_(parts), overlap_(config.overlap_comm && parts.group.size() > 1) {}

  GradTarget grad_target(int unit, std::int64_t micro_batch) override {
    return {&parts_.context.blueprint, parts_.context.arena.unit(RegionKind::kGradients, unit),
            micro_batch == 0 ? Write::kOverwrite : Write::kAdd};
  }

  void unit_grads_ready(int unit, bool last) override {
    if (!last || parts_.group.size() == 1) {
      return;
    }
    Stream& stream = overlap_ ? parts_.communication : parts_.context.compute;
    if (overlap_) {
      stream.wait(parts_.context.compute.record());
    }
    parts_.group.all_reduce(gradients(unit), ReduceOp::kSum, Purpose::kGradient, stream);
  }

  StepStats step(const StepParams& params) override {
    Stream& compute = parts_.context.compute;
    if (overlap_) {
      compute.wait(parts_.communication.record());
    }
    const double norm = gradient_norm();
    if (!std::isfinite(norm)) {
      return {.grad_norm = norm, .updated = false};
    }
    const auto scale = static_cast<float>(clip_factor(norm, params.gradient_clipping));
    update_units({.learning_rate = params.learning_rate,
                  .beta1 = {},
                  .update = params.update,
                  .gradient_scale = scale});
    return {.grad_norm = norm, .updated = true};
  }

 private:
  /// Without the padding, whose content is nobody's.
  [[nodiscard]] Tensor gradients(int unit) const {
    return parts_.context.arena.unit(RegionKind::kGradients, unit)
        .flat(0, parts_.shards.numel(unit));
  }

  /// The same on every rank, since all hold the same sums.
  double gradient_norm() {
    const ExecContext& context = parts_.context;
    for (int unit = 0; unit < parts_.shards.num_units(); ++unit) {
      context.ops.sum_of_squares(gradients(unit), parts_.norm_total,
                                 unit == 0 ? Write::kOverwrite : Write::kAdd, context.compute);
    }
    double sum_of_squares = 0.0;
    context.device.copy_to_host(parts_.norm_total, &sum_of_squares, context.compute);
    context.compute.synchronize();
    return std::sqrt(sum_of_squares);
  }

  void update_units(const UpdateParams& params) {
    const Arena& arena = parts_.context.arena;
    std::vector<UnitState> units;
    for (int unit = 0; unit < parts_.shards.num_units(); ++unit) {
      const std::int64_t numel = parts_.shards.numel(unit);
      const auto whole = [&](const Tensor& tensor) { return tensor.flat(0, numel); };
      const Tensor parameters = whole(arena.unit(RegionKind::kParameters, unit));
      const Tensor master = whole(arena.master(unit));
      units.push_back({.unit = unit,
                       .range = {0, numel},
                       .gradient = gradients(unit),
                       .master = master,
                       .first_moment = whole(arena.unit(RegionKind::kExpAvg, unit)),
                       .second_moment = whole(arena.unit(RegionKind::kExpAvgSq, unit)),
                       .parameters = parameters.data() == master.data() ? Tensor{} : parameters});
    }
    parts_.optimizer.update(parts_.context, units, params, [](std::size_t /*unit*/) {});
  }

  DataParallelParts parts_;
  bool overlap_;
};

}  // namespace

std::unique_ptr<DataParallel> make_zero0(const DataParallelParts& parts, const ZeroConfig& config) {
  return std::make_unique<Zero0>(parts, config);
}

}  // namespace dstrain
