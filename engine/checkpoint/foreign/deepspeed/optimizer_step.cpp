#include "engine/checkpoint/foreign/deepspeed/optimizer_step.h"

#include "engine/checkpoint/checkpoint_error.h"

namespace dstrain {

std::int64_t read_optimizer_step(const PickleValue& step, const TorchFile& file) {
  if (step.kind() != PickleKind::kTensor) {
    return step.integer("the optimizer's step");
  }
  const TorchTensor tensor = step.tensor("the optimizer's step");
  float value = -1;
  if (tensor.num_elements() == 1) {
    read_floats(tensor, file.storage(tensor), 0, {&value, 1});
  }
  // fp32 counts exactly up to 2²⁴; a value far beyond that is not a step.
  if (!(value >= 0 && value < 0x1p62F)) {
    throw CheckpointError("the optimizer's step is not one number that counts steps");
  }
  return static_cast<std::int64_t>(value);
}

}  // namespace dstrain
