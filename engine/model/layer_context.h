// LayerContext: an ExecContext with the tensor-parallel group that split layers meet in.
#pragma once

#include "engine/parallel/tensor_parallel.h"
#include "engine/runtime/exec_context.h"

namespace dstrain {

struct LayerContext : ExecContext {
  const TensorParallel& tensor_parallel;
};

}  // namespace dstrain
