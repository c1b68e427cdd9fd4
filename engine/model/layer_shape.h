// LayerShape: the sizes that every layer of a stage is declared with.
//
// The layers of this folder share one form: a static declare() adds what the layer stores to a
// Blueprint and returns the layer, which is a handful of references into it; forward() and
// backward() find their tensors through the ExecContext. `slot` is the micro-batch in flight.
#pragma once

#include <cstdint>

#include "engine/spec/model_spec.h"
#include "kernels/core/dtype.h"

namespace dstrain {

struct LayerShape {
  ModelSpec model;
  std::int64_t batch = 1;     ///< B, sequences of a micro-batch
  std::int64_t sequence = 1;  ///< T
  DType compute = DType::kF32;

  /// N = B · T.
  [[nodiscard]] std::int64_t tokens() const { return batch * sequence; }
};

}  // namespace dstrain
