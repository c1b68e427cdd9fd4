// ZeRO stage 1: every rank holds all parameters and all gradients, but the optimizer (the master
// and its moments) only of its own slice of each unit, 1/dp of it.
// Per parameter: 2 parameter + 2 gradient + (4 master + 8 Adam)/dp = 4 + 12/dp bytes in bf16 or
//                fp16, 2 more where gradients are accumulated in fp32; 8 + 8/dp bytes in fp32,
//                whose master is the parameter itself.
// Order of events in one step:
//   each micro-batch adds into the gradients; in the last one,
//   backward leaves unit u -> reduce-scatter: my slice of u's gradient is the sum over the ranks
//   wait for all of them -> global norm over the slices -> clip factor -> optimizer on my slices;
//   unit u's slice is updated -> all-gather of u, while u+1 is updated; the next forward waits for
//   a unit only when it comes to it.
// Where gradients are compressed (CompressedGradients), every rank gets the mean of all of them
// instead, at the end of backward.
// On the wire: a reduce-scatter of the gradients and an all-gather of the parameters a step, one
// element a parameter each: together what stage 0's all-reduce moves.
#include <optional>

#include "engine/parallel/buckets.h"
#include "engine/parallel/compressed_gradients.h"
#include "engine/parallel/gradient_wire.h"
#include "engine/parallel/owned_update.h"

namespace dstrain {
namespace {

class Zero1 final : public DataParallel {
 public:
  explicit Zero1(const DataParallelParts& parts)
      : parts_(parts),
        compute_(parts.context.compute),
        collectives_(parts.memory.options().overlap ? parts.communication : compute_),
        owned_(parts, collectives_),
        wire_(parts, RegionKind::kGradients, collectives_) {
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
    const Tensor gradients = parts_.context.arena.unit(RegionKind::kGradients, unit);
    if (narrowing_) {
      parts_.context.ops.add_scaled(parts_.context.arena.unit(RegionKind::kGradientBuckets, unit),
                                    1.0F, gradients,
                                    micro_batch == 0 ? Write::kOverwrite : Write::kAdd, compute_);
      narrowing_->release(unit, compute_);
    }
    if (last && travel_ == GradientTravel::kSummed && parts_.group(unit).size() > 1) {
      // Afterwards this rank's slice of the gradients is the sum; the rest of the gradients is of
      // no use.
      const Range mine = parts_.memory.owned(unit);
      collectives_.wait(compute_.record());
      wire_.reduce_scatter(unit, gradients, mine, gradients.flat(mine.begin, mine.end),
                           Write::kOverwrite);
    }
  }

  StepStats step(const StepParams& params) override {
    compute_.wait(collectives_.record());
    return compressed_ && params.travel == GradientTravel::kCoded
               ? compressed_->step(params, owned_)
               : owned_.step(params);
  }

  void refresh_parameters() override { owned_.refresh_parameters(); }
  [[nodiscard]] std::optional<OffloadedUpdate> last_offloaded() const override {
    return owned_.last_offloaded();
  }

 private:
  DataParallelParts parts_;
  Stream& compute_;
  Stream& collectives_;  // beside compute, or the same
  OwnedUpdate owned_;
  GradientWire wire_;
  std::optional<CompressedGradients> compressed_;
  std::optional<Buckets> narrowing_;  // backward writes f32; here it is kept in less
  GradientTravel travel_ = GradientTravel::kSummed;
};

}  // namespace

std::unique_ptr<DataParallel> make_zero1(const DataParallelParts& parts) {
  return std::make_unique<Zero1>(parts);
}

}  // namespace dstrain
