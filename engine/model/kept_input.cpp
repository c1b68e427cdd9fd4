#include "engine/model/kept_input.h"

#include "kernels/core/check.h"

namespace dstrain {

bool KeptInput::is_shared(const LayerShape& shape, bool asked) {
  return asked && shape.tensor.ranks > 1 && !shape.tensor.sequence_parallel &&
         !shape.extends_cache();
}

KeptInput KeptInput::declare(const LayerShape& shape,
                             const std::string& name,
                             Blueprint& blueprint) {
  KeptInput input;
  if (shape.partitions_input) {
    check(!shape.together, "{} keeps parts of inputs that wait whole between blocks", name);
    const std::int64_t elements = shape.stream_tokens() * shape.model.hidden_size;
    check(elements % shape.tensor.ranks == 0, "{} numbers among {} ranks", elements,
          shape.tensor.ranks);
    input.part_ = blueprint.add_buffer({name + "/input_part",
                                        {elements / shape.tensor.ranks},
                                        shape.compute,
                                        Lifetime::kSaved,
                                        LayerKind::kNorm});
  }
  return input;
}

void KeptInput::keep(const LayerContext& context, int slot, ConstTensor stream_NC) const {
  if (part_.index >= 0) {
    context.ops.cast(context.tensor_parallel.part_of(stream_NC), context.buffer(part_, slot),
                     context.compute);
  }
}

void KeptInput::restore(const LayerContext& context, int slot, Tensor stream_NC) const {
  if (part_.index >= 0) {
    context.tensor_parallel.make_whole(context.buffer(part_, slot), stream_NC, context.compute);
  }
}

}  // namespace dstrain
