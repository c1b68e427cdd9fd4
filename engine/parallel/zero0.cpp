// ZeRO stage 0, plain data parallelism: every rank holds all parameters, gradients and optimizer
// states, and sees its own part of the batch.
// Per parameter: 2 parameter + 2 gradient + 4 master + 8 Adam = 16 bytes in bf16 or fp16, 2 more
//                where gradients are accumulated in fp32; 4 + 4 + 8 = 16 bytes in fp32.
// Order of events in one step:
//   each micro-batch adds into the gradients; in the last one,
//   backward leaves unit u -> all-reduce of u's gradients, while backward continues with u-1
//   wait for all of them -> global norm -> clip factor -> optimizer on everything.
// Where gradients are not summed in a step (GradientTravel), they stay as backward leaves them, and
// what ranks exchange is the optimizer's business, or that of CompressedGradients.
// On the wire: an all-reduce of every gradient a step, which is 2 (dp-1)/dp elements a parameter
// for a ring, whatever the number of micro-batches.
#include <optional>

#include "engine/parallel/buckets.h"
#include "engine/parallel/compressed_gradients.h"
#include "engine/parallel/gradient_wire.h"
#include "engine/parallel/owned_update.h"

namespace dstrain {
namespace {

class Zero0 final : public DataParallel {
 public:
  explicit Zero0(const DataParallelParts& parts)
      : parts_(parts),
        compute_(parts.context.compute),
        reduction_(parts.memory.options().overlap ? parts.communication : compute_),
        owned_(parts, reduction_),
        wire_(parts, RegionKind::kGradients, reduction_) {
    if (parts.memory.has(RegionKind::kGradientBuckets)) {
      narrowing_.emplace(parts.context.arena, parts.memory, RegionKind::kGradientBuckets,
                         parts.shards.num_units());
    }
    if (parts.memory.options().compression) compressed_.emplace(parts);
    for (int unit = 0; unit < parts.shards.num_units(); ++unit) {
      parts.context.parameters.set(unit, parts.context.arena.unit(RegionKind::kParameters, unit));
    }
  }

  void begin_step(GradientTravel travel) override { travel_ = travel; }

  void before_visit(const UnitVisit& visit) override {
    for (const int unit : visit.reads) {
      owned_.wait_for(unit);
    }
  }

  GradTarget grad_target(int unit, std::int64_t micro_batch) override {
    if (narrowing_) {
      return {&parts_.context.blueprint, narrowing_->acquire(unit, compute_), Write::kOverwrite};
    }
    return {&parts_.context.blueprint, parts_.context.arena.unit(RegionKind::kGradients, unit),
            micro_batch == 0 ? Write::kOverwrite : Write::kAdd};
  }

  void unit_grads_ready(int unit, std::int64_t micro_batch, bool last) override {
    if (narrowing_) {
      const std::int64_t numel = parts_.shards.numel(unit);
      parts_.context.ops.add_scaled(
          parts_.context.arena.unit(RegionKind::kGradientBuckets, unit).flat(0, numel), 1.0F,
          gradients(unit), micro_batch == 0 ? Write::kOverwrite : Write::kAdd, compute_);
      narrowing_->release(unit, compute_);
    }
    if (last && travel_ == GradientTravel::kSummed && parts_.group(unit).size() > 1) {
      reduction_.wait(compute_.record());
      wire_.all_reduce(unit, gradients(unit));
    }
  }

  StepStats step(const StepParams& params) override {
    compute_.wait(reduction_.record());
    return compressed_ && params.travel == GradientTravel::kCoded
               ? compressed_->step(params, owned_)
               : owned_.step(params);
  }

  void refresh_parameters() override { owned_.refresh_parameters(); }
  [[nodiscard]] std::optional<OffloadedUpdate> last_offloaded() const override {
    return owned_.last_offloaded();
  }

 private:
  /// Leaves out the padding, whose content is undefined.
  [[nodiscard]] Tensor gradients(int unit) const {
    return parts_.context.arena.unit(RegionKind::kGradients, unit)
        .flat(0, parts_.shards.numel(unit));
  }

  DataParallelParts parts_;
  Stream& compute_;
  Stream& reduction_;  // where collectives run: beside backward, or between its units
  OwnedUpdate owned_;
  GradientWire wire_;
  std::optional<CompressedGradients> compressed_;
  std::optional<Buckets> narrowing_;  // backward writes f32; here it is kept in less
  GradientTravel travel_ = GradientTravel::kSummed;
};

}  // namespace

std::unique_ptr<DataParallel> make_zero0(const DataParallelParts& parts) {
  return std::make_unique<Zero0>(parts);
}

}  // namespace dstrain
