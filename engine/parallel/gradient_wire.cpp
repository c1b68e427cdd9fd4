#include "engine/parallel/gradient_wire.h"

namespace dstrain {

GradientWire::GradientWire(const DataParallelParts& parts, RegionKind kept, Stream& stream)
    : ops_(parts.context.ops),
      groups_(parts.groups),
      stream_(stream),
      codec_(make_codec(parts.memory.dtype(kept), parts.memory.options().wire_dtype)) {
  if (parts.memory.has(RegionKind::kWireBuckets)) {
    buckets_.emplace(parts.context.arena, parts.memory, RegionKind::kWireBuckets,
                     parts.shards.num_units());
  }
}

void GradientWire::all_reduce(int unit, Tensor gradients) {
  const Tensor travelling = pack(unit, gradients);
  groups_.replicas(unit).all_reduce(travelling, ReduceOp::kSum, Purpose::kGradient, stream_);
  unpack(unit, travelling, gradients, Write::kOverwrite);
}

void GradientWire::reduce_scatter(int unit, Tensor gradients, Range mine, Tensor sum, Write write) {
  const Tensor travelling = pack(unit, gradients);
  const Tensor travelled = travelling.flat(mine.begin, mine.end);
  groups_.replicas(unit).reduce_scatter(travelling, travelled, ReduceOp::kSum, Purpose::kGradient,
                                        stream_);
  unpack(unit, travelled, sum, write);
}

void GradientWire::sum_copies(int unit, Tensor slice, Tensor gradients, Communicator& copies) {
  const DType wire = codec_->wire_dtype();
  Tensor travelling = slice;
  if (slice.dtype() != wire) {
    travelling = (buckets_ ? buckets_->acquire(unit, stream_) : gradients).flat(0, slice.numel());
    ops_.cast(slice, travelling, stream_);
  }
  copies.all_reduce(travelling, ReduceOp::kSum, Purpose::kGradient, stream_);
  if (slice.dtype() != wire) {
    ops_.cast(travelling, slice, stream_);
    if (buckets_) buckets_->release(unit, stream_);
  }
}

Tensor GradientWire::pack(int unit, Tensor gradients) {
  if (!buckets_) {
    return gradients;
  }
  const Tensor travelling =
      buckets_->acquire(unit, stream_).flat(0, codec_->wire_elements(gradients.numel()));
  codec_->encode(gradients, travelling, ops_, stream_);
  return travelling;
}

void GradientWire::unpack(int unit, Tensor travelled, Tensor sum, Write write) {
  if (travelled.data() != sum.data()) {
    codec_->decode(travelled, sum, write, ops_, stream_);
  }
  if (buckets_) {
    buckets_->release(unit, stream_);
  }
}

}  // namespace dstrain
