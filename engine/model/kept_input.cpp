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
  if (!shape.keeps_input_apart()) {
    return input;
  }
  const int ranks = shape.partitions_input ? shape.tensor.ranks : 1;
  const std::int64_t stream = shape.stream_tokens() * shape.model.hidden_size;
  check(stream % ranks == 0, "{} numbers among {} ranks", stream, ranks);
  const Shape part{stream / ranks};
  input.is_part_ = shape.partitions_input;
  input.on_host_ = shape.input_on_host;
  input.kept_ =
      blueprint.add_buffer({.name = name + "/kept_input",
                            .shape = part,
                            .dtype = shape.compute,
                            .lifetime = Lifetime::kSaved,
                            .layer = LayerKind::kNorm,
                            .space = shape.input_on_host ? Space::kHost : Space::kDevice});
  if (shape.input_on_host) {
    for (const int place : {0, 1}) {
      input.places_[place] = blueprint.add_buffer(
          {"kept_input/" + std::to_string(place), part, shape.compute, Lifetime::kScratch});
    }
  }
  return input;
}

void KeptInput::keep(const LayerContext& context, int slot, ConstTensor stream_NC) const {
  if (kept_.index < 0) {
    return;
  }
  const ConstTensor mine = is_part_ ? context.tensor_parallel.part_of(stream_NC) : stream_NC;
  if (on_host_) {
    context.input_copies->take(of_micro_batch(context, slot), mine, places(context),
                               context.compute);
  } else {
    context.device.copy(mine, context.buffer(kept_, slot), context.compute);
  }
}

void KeptInput::restore(const LayerContext& context, int slot, Tensor stream_NC) const {
  if (kept_.index < 0) {
    return;
  }
  const ConstTensor mine = on_host_ ? context.input_copies->bring(of_micro_batch(context, slot),
                                                                  places(context), context.compute)
                                    : context.buffer(kept_, slot);
  if (is_part_) {
    context.tensor_parallel.make_whole(mine, stream_NC, context.compute);
  } else {
    context.device.copy(mine, stream_NC, context.compute);
  }
}

void KeptInput::bring_soon(const LayerContext& context, int slot) const {
  if (on_host_) {
    context.input_copies->bring_soon(of_micro_batch(context, slot), places(context),
                                     context.compute);
  }
}

InputCopies::Kept KeptInput::of_micro_batch(const LayerContext& context, int slot) const {
  check(context.input_copies != nullptr, "an input in the host's memory, and nothing to copy it");
  return {.buffer = kept_.index, .slot = slot, .host = context.buffer(kept_, slot)};
}

InputCopies::Places KeptInput::places(const LayerContext& context) const {
  return {context.buffer(places_[0]), context.buffer(places_[1])};
}

}  // namespace dstrain
