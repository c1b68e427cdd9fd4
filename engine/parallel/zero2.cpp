// ZeRO stage 2: every rank holds all parameters, but gradients and the optimizer only of its own
// slice of each unit, 1/dp of it.
// Per parameter: 2 parameter + (2 gradient + 4 master + 8 Adam)/dp = 2 + 14/dp bytes in bf16 or
//                fp16, 2/dp more where gradients are accumulated in fp32; 4 + 12/dp bytes in fp32.
//                And f32 buckets for the units whose gradients are on their way: two blocks, one if
//                nothing overlaps; a tied embedding's stands from the head to the end of backward.
// Order of events in one step; per micro-batch:
//   backward of unit u fills its bucket -> reduce-scatter, while backward continues with u-1 in
//   another bucket -> what comes in is added to my slice of the gradients;
// and once a step:
//   global norm over the slices -> clip factor -> optimizer on my slices;
//   unit u's slice is updated -> all-gather of u, while u+1 is updated; the next forward waits for
//   a unit only when it comes to it.
// On the wire: with m micro-batches m reduce-scatters of the gradients and an all-gather of the
// parameters a step, one element a parameter each. There is no all-reduce of gradients.
#include "engine/parallel/buckets.h"
#include "engine/parallel/gradient_wire.h"
#include "engine/parallel/owned_update.h"

namespace dstrain {
namespace {

class Zero2 final : public DataParallel {
 public:
  explicit Zero2(const DataParallelParts& parts)
      : parts_(parts),
        compute_(parts.context.compute),
        collectives_(parts.memory.options().overlap ? parts.communication : compute_),
        owned_(parts, collectives_),
        wire_(parts, RegionKind::kGradientBuckets, collectives_),
        buckets_(parts.context.arena,
                 parts.memory,
                 RegionKind::kGradientBuckets,
                 parts.shards.num_units()) {
    for (int unit = 0; unit < parts.shards.num_units(); ++unit) {
      parts.context.parameters.set(unit, parts.context.arena.unit(RegionKind::kParameters, unit));
    }
  }

  void before_visit(const UnitVisit& visit) override {
    for (const int unit : visit.reads) {
      owned_.wait_for(unit);
    }
  }

  GradTarget grad_target(int unit, std::int64_t /*micro_batch*/) override {
    return {&parts_.context.blueprint, buckets_.acquire(unit, compute_), Write::kOverwrite};
  }

  void unit_grads_ready(int unit, std::int64_t micro_batch, bool /*last*/) override {
    collectives_.wait(compute_.record());
    wire_.reduce_scatter(unit, parts_.context.arena.unit(RegionKind::kGradientBuckets, unit),
                         parts_.memory.owned(unit),
                         parts_.context.arena.unit(RegionKind::kGradients, unit),
                         micro_batch == 0 ? Write::kOverwrite : Write::kAdd);
    buckets_.release(unit, collectives_);
  }

  StepStats step(const StepParams& params) override {
    compute_.wait(collectives_.record());
    return owned_.step(params);
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
  Buckets buckets_;
};

}  // namespace

std::unique_ptr<DataParallel> make_zero2(const DataParallelParts& parts) {
  return std::make_unique<Zero2>(parts);
}

}  // namespace dstrain
