// ZeRO stage 3: every rank holds parameters, gradients and the optimizer only of its own slice of
// each unit, 1/dp of it. A unit's parameters are made whole for as long as they are used.
// Per parameter: (2 parameter + 2 gradient + 4 master + 8 Adam)/dp = 16/dp bytes in bf16 or fp16,
//                2/dp more where gradients are accumulated in fp32; 16/dp bytes in fp32. And the
//                gathered units (the one in use and the one on its way), and buckets as in stage 2.
// Order of events; the gather plan says which unit, when and where:
//   before visit v computes: gathers that the plan starts here are sent on their way (the next
//   unit's, so that it travels while this one computes); then wait for what v itself reads
//   after visit v: what is not read again soon is let go; its memory belongs to a later gather
//   backward of unit u fills its bucket -> reduce-scatter -> added to my slice of the gradients
// and once a step:
//   global norm over the slices -> clip factor -> optimizer on my slices. Nothing is gathered then:
//   the next forward does it. Only small units that are always whole are gathered here.
// Where parameters lie in the host's memory or on a disk, a rank's own slice is brought to its
// place in the whole unit before the others' are gathered around it.
// With a second copy of the parameters, cut over fewer ranks than the first (hpZ, Wang et al. 2023,
// section 3.2): the first gather of a unit after an update goes over all ranks, and leaves this
// rank's slice of the second copy behind; every further one, of backward and of later
// micro-batches, goes over those few alone.
// With a code for parameters (qwZ, section 3.1 there), gathers over slices carry 8 bits an element
// and a scale a block: a rank codes its slice and decodes all of them. What the second copy holds
// has been decoded, and travels as it is. With one for gradients, coded_gradients.h takes the place
// of reduce-scatters.
// With slices for a group of neighbours only (MiCS, Zhang et al. 2022), of which every other group
// has the same: all of the above happens within the group, and the slices' gradients are summed
// once more across the groups when the step's last micro-batch has left them.
// On the wire, a micro-batch: an all-gather for every gather of the plan, one or two a unit, and a
// reduce-scatter, one element a parameter each: at most 3 elements a parameter.
#include "engine/parallel/buckets.h"
#include "engine/parallel/coded_gradients.h"
#include "engine/parallel/disk_parameters.h"
#include "engine/parallel/gradient_wire.h"
#include "engine/parallel/owned_update.h"
#include "kernels/math/block_code.h"

namespace dstrain {
namespace {

class Zero3 final : public DataParallel {
 public:
  explicit Zero3(const DataParallelParts& parts)
      : parts_(parts),
        compute_(parts.context.compute),
        collectives_(parts.memory.options().overlap ? parts.communication : compute_),
        owned_(parts, collectives_),
        wire_(parts, RegionKind::kGradientBuckets, collectives_),
        buckets_(parts.context.arena,
                 parts.memory,
                 RegionKind::kGradientBuckets,
                 parts.shards.num_units()),
        has_second_copy_(static_cast<std::size_t>(parts.shards.num_units())) {
    if (parts.memory.placement().parameters.space == Space::kDisk) {
      on_disk_ = std::make_unique<DiskParameters>(parts);
    }
    if (parts.memory.options().gradient_code) coded_.emplace(parts_, collectives_);
    for (int unit = 0; unit < parts.shards.num_units(); ++unit) {
      const Tensor held = parts.context.arena.unit(RegionKind::kParameters, unit);
      if (is_always_whole(unit)) {
        parts.context.parameters.set(unit, held);
      }
    }
  }

  void begin_walk(int walk, bool last) override {
    plan_ = &parts_.gathers.at(static_cast<std::size_t>(walk));
    arrived_.resize(plan_->gathers().size());
    visit_ = 0;
    last_walk_ = last;
    if (!first_gathers_started_) {
      start_gathers(-1);
    }
    first_gathers_started_ = false;
  }

  void before_visit(const UnitVisit& visit) override {
    const UnitVisit& here = plan_->walk().at(static_cast<std::size_t>(visit_));
    check(here.unit == visit.unit && here.pass == visit.pass,
          "unit {} is visited where the plan has unit {}", visit.unit, here.unit);
    start_gathers(visit_);
    const bool is_last_visit = visit_ + 1 == static_cast<std::int64_t>(plan_->walk().size());
    if (is_last_visit && !last_walk_) {
      start_gathers(-1);  // the next micro-batch's
      first_gathers_started_ = true;
    }
    for (const int index : plan_->used(visit_)) {
      const Gather& gather = plan_->gathers()[static_cast<std::size_t>(index)];
      compute_.wait(arrived_[static_cast<std::size_t>(index)]);
      parts_.context.parameters.set(gather.unit, memory_of(gather));
    }
    for (const int read : here.reads) {
      owned_.wait_for(read);
    }
  }

  void after_visit(const UnitVisit& /*visit*/) override {
    for (const int index : plan_->released(visit_)) {
      parts_.context.parameters.clear(plan_->gathers()[static_cast<std::size_t>(index)].unit);
    }
    visit_ += 1;
  }

  GradTarget grad_target(int unit, std::int64_t /*micro_batch*/) override {
    return {&parts_.context.blueprint, buckets_.acquire(unit, compute_), Write::kOverwrite};
  }

  void unit_grads_ready(int unit, std::int64_t micro_batch, bool last) override {
    collectives_.wait(compute_.record());
    const Tensor bucket = parts_.context.arena.unit(RegionKind::kGradientBuckets, unit);
    const Tensor slice = parts_.context.arena.unit(RegionKind::kGradients, unit);
    const Write write = micro_batch == 0 ? Write::kOverwrite : Write::kAdd;
    if (coded_ && parts_.shards.num_slices(unit) > 1) {
      coded_->reduce_scatter(unit, bucket, slice, write);
    } else {
      wire_.reduce_scatter(unit, bucket, parts_.memory.owned(unit), slice, write);
    }
    Communicator* const copies = parts_.groups.copies(unit);
    if (last && copies != nullptr) {
      wire_.sum_copies(unit, slice, bucket, *copies);
    }
    buckets_.release(unit, collectives_);
  }

  StepStats step(const StepParams& params) override {
    compute_.wait(collectives_.record());
    forget_second_copy();
    return owned_.step(params);
  }

  void refresh_parameters() override {
    forget_second_copy();
    owned_.refresh_parameters();
  }
  [[nodiscard]] std::optional<OffloadedUpdate> last_offloaded() const override {
    return owned_.last_offloaded();
  }

 private:
  /// Starts the gathers that the plan has before `visit` computes. The previous content of their
  /// memory was released by an earlier visit, which is already enqueued on compute.
  void start_gathers(std::int64_t visit) {
    const std::vector<int>& starting = plan_->starting(visit);
    if (starting.empty()) {
      return;
    }
    collectives_.wait(compute_.record());
    for (const int index : starting) {
      const Gather& gather = plan_->gathers()[static_cast<std::size_t>(index)];
      make_whole(gather.unit, memory_of(gather));
      arrived_[static_cast<std::size_t>(index)] = collectives_.record();
    }
  }

  void make_whole(int unit, Tensor whole) {
    Communicator* const few =
        parts_.memory.placement().secondary.is_cut() ? parts_.neighbour_group : nullptr;
    if (few != nullptr && has_second_copy_[static_cast<std::size_t>(unit)]) {
      few->all_gather(parts_.context.arena.unit(RegionKind::kSecondary, unit), whole,
                      Purpose::kParameter, collectives_);
      return;
    }
    if (on_disk_ == nullptr) owned_.order_after(unit, collectives_);
    if (parts_.memory.coded_parameters(parts_.shards, unit) > 0) {
      gather_coded(unit, whole);
    } else {
      parts_.group(unit).all_gather(own_slice(unit, whole), whole, Purpose::kParameter,
                                    collectives_);
    }
    if (few != nullptr) {
      const Range slice = parts_.memory.place(RegionKind::kSecondary, unit).held;
      parts_.context.device.copy(whole.flat(slice.begin, slice.end),
                                 parts_.context.arena.unit(RegionKind::kSecondary, unit),
                                 collectives_);
      has_second_copy_[static_cast<std::size_t>(unit)] = true;
    }
  }

  /// Every rank decodes all slices, its own too: all compute with the same parameters.
  void gather_coded(int unit, Tensor whole) {
    const BlockCode code = *parts_.memory.options().parameter_code;
    const std::int64_t slices = parts_.shards.num_slices(unit);
    const std::int64_t bytes = code.bytes(parts_.shards.slice_numel(unit));
    const std::int64_t mine = parts_.memory.owned(unit).begin / parts_.shards.slice_numel(unit);
    const Tensor coded = parts_.context.arena.coded_traffic(slices * bytes);
    const Tensor own = coded.flat(mine * bytes, (mine + 1) * bytes);
    parts_.context.ops.encode_blocks(code, {}, own_slice(unit, whole), own, collectives_);
    parts_.group(unit).all_gather(own, coded, Purpose::kParameter, collectives_);
    parts_.context.ops.decode_blocks(code, {.count = slices}, coded, whole, Write::kOverwrite,
                                     collectives_);
  }

  /// This rank's part of the unit, on the device: where it is kept, or its place in the whole.
  [[nodiscard]] Tensor own_slice(int unit, Tensor whole) {
    const Tensor kept = parts_.context.arena.unit(RegionKind::kParameters, unit);
    if (!parts_.memory.parameters_are_apart()) {
      return kept;
    }
    const Range mine = parts_.memory.owned(unit);
    const Tensor place = whole.flat(mine.begin, mine.end);
    if (on_disk_ != nullptr) {
      on_disk_->bring(unit, owned_.updated(unit), place, collectives_);
    } else {
      parts_.context.device.copy_from_host(kept.data(), place, collectives_);
    }
    return place;
  }

  [[nodiscard]] Tensor memory_of(const Gather& gather) const {
    return parts_.context.arena.gathered(gather.offset, parts_.shards.padded_numel(gather.unit));
  }

  void forget_second_copy() {
    has_second_copy_.assign(static_cast<std::size_t>(parts_.shards.num_units()), false);
  }

  [[nodiscard]] bool is_always_whole(int unit) const {
    const std::vector<bool>& whole = parts_.memory.options().always_whole;
    return !whole.empty() && whole.at(static_cast<std::size_t>(unit));
  }

  DataParallelParts parts_;
  Stream& compute_;
  Stream& collectives_;  // beside compute, or the same
  OwnedUpdate owned_;
  std::unique_ptr<DiskParameters> on_disk_;  // nullptr: parameters lie elsewhere
  GradientWire wire_;
  std::optional<CodedGradients> coded_;
  Buckets buckets_;
  std::vector<bool> has_second_copy_;  // by unit: up to date
  // Where the walk is:
  const GatherPlan* plan_ = nullptr;
  std::vector<Event> arrived_;  // by gather of the plan
  std::int64_t visit_ = 0;
  bool last_walk_ = true;
  bool first_gathers_started_ = false;  // by the walk before
};

}  // namespace

std::unique_ptr<DataParallel> make_zero3(const DataParallelParts& parts) {
  return std::make_unique<Zero3>(parts);
}

}  // namespace dstrain
