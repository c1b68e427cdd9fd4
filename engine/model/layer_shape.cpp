#include "engine/model/layer_shape.h"

#include <utility>

namespace dstrain {
namespace {

bool is_kept(Origin origin, RecomputeGranularity granularity) {
  switch (granularity) {
    case RecomputeGranularity::kNone:
      return true;
    case RecomputeGranularity::kSelective:
      return origin != Origin::kRowwise;
    case RecomputeGranularity::kFull:
      return origin == Origin::kInput;
  }
  return true;
}

}  // namespace

BufferRef LayerShape::add_activation(Blueprint& blueprint,
                                     const std::string& layer,
                                     const std::string& what,
                                     Shape shape,
                                     DType dtype,
                                     Origin origin,
                                     LayerKind kind) const {
  if (!extends_cache() && is_kept(origin, recompute)) {
    return blueprint.add_buffer({layer + "/" + what, shape, dtype, Lifetime::kSaved, kind});
  }
  const std::string within_block = layer.substr(layer.rfind('.') + 1);
  return blueprint.add_buffer({within_block + "/" + what, shape, dtype, Lifetime::kScratch, kind});
}

BufferRef LayerShape::add_backward_buffer(Blueprint& blueprint, BufferDecl buffer) const {
  return extends_cache() ? BufferRef{} : blueprint.add_backward_buffer(std::move(buffer));
}

}  // namespace dstrain
