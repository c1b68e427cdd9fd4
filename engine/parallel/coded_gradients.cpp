#include "engine/parallel/coded_gradients.h"

namespace dstrain {

CodedGradients::CodedGradients(const DataParallelParts& parts, Stream& stream)
    : parts_(parts),
      stream_(stream),
      code_(parts.memory.options().gradient_code.value()),
      across_(parts.across_group == nullptr || parts.shards.has_copies()
                  ? 1
                  : parts.across_group->size()) {}

void CodedGradients::reduce_scatter(int unit, Tensor gradients, Tensor sum, Write write) {
  Ops& ops = parts_.context.ops;
  Communicator& neighbours = across_ == 1 ? parts_.group(unit) : *parts_.neighbour_group;
  const std::int64_t slice = parts_.shards.slice_numel(unit);
  const std::int64_t inside = neighbours.size();
  const std::int64_t bytes = code_.bytes(slice);
  const Tensor coded = parts_.context.arena.coded_traffic(across_ * inside * bytes);
  for (std::int64_t a = 0; a < across_; ++a) {
    const CodedParts apart{.count = inside, .stride = across_};
    ops.encode_blocks(code_, apart, gradients.flat(a * inside * slice, (a + 1) * inside * slice),
                      coded.flat(a * bytes, (a + apart.reach()) * bytes), stream_);
  }
  exchange(neighbours, gradients.flat(0, across_ * slice), across_, slice);
  if (across_ > 1) {
    ops.encode_blocks(code_, {.count = across_}, gradients.flat(0, across_ * slice),
                      coded.flat(0, across_ * bytes), stream_);
    exchange(*parts_.across_group, gradients.flat(0, slice), 1, slice);
  }
  if (write == Write::kOverwrite) {
    ops.cast(gradients.flat(0, slice), sum, stream_);
  } else {
    ops.add_scaled(gradients.flat(0, slice), 1.0F, sum, write, stream_);
  }
}

void CodedGradients::exchange(Communicator& group,
                              Tensor sums,
                              std::int64_t parts,
                              std::int64_t slice) {
  const std::int64_t for_each = parts * code_.bytes(slice);
  const std::int64_t all = group.size() * for_each;
  const Tensor memory = parts_.context.arena.coded_traffic(2 * all);
  const Tensor received = memory.flat(all, 2 * all);
  counts_.assign(static_cast<std::size_t>(group.size()), for_each);
  group.all_to_all(memory.flat(0, all), counts_, received, counts_, Purpose::kGradient, stream_);
  for (std::int64_t rank = 0; rank < group.size(); ++rank) {
    parts_.context.ops.decode_blocks(code_, {.count = parts},
                                     received.flat(rank * for_each, (rank + 1) * for_each), sums,
                                     rank == 0 ? Write::kOverwrite : Write::kAdd, stream_);
  }
}

}  // namespace dstrain
