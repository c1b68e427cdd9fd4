#include "engine/parallel/data_parallel.h"

namespace dstrain {

std::unique_ptr<DataParallel> make_data_parallel(const DataParallelParts& parts) {
  const Placement& placement = parts.memory.placement();
  const bool parameters = placement.parameters.is_cut();
  const bool gradients = placement.gradients.is_cut();
  const bool states = placement.states.is_cut();
  check((gradients || !parameters) && (states || !gradients),
        "no strategy cuts parameters and not their gradients, or gradients and not their states");
  return parameters  ? make_zero3(parts)
         : gradients ? make_zero2(parts)
         : states    ? make_zero1(parts)
                     : make_zero0(parts);
}

}  // namespace dstrain
