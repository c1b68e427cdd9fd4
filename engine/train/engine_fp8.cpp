// The engine's part in fp8: where its scales lie, and their update from what all ranks have seen.
#include "engine/train/engine.h"
#include "engine/train/gradient_probe.h"
#include "kernels/core/caller_stream.h"

namespace dstrain {

/// nullptr where nothing is computed in 8 bits.
std::unique_ptr<Fp8Scales> Engine::make_fp8_scales() {
  if (!plan_.fp8) {
    return nullptr;
  }
  return std::make_unique<Fp8Scales>(scaled_tensors(plan_), plan_.blueprint,
                                     arena_.buffer(plan_.fp8_amax), arena_.buffer(plan_.fp8_scales),
                                     *backend_.ops, *backend_.device, *plan_.fp8);
}

/// Updates scales from what all ranks have seen: ranks that share a tensor have seen parts of it,
/// or other tokens.
void Engine::update_fp8_scales() {
  std::vector<float> maxima = fp8_->maxima(context_.compute);
  CallerStream host;
  groups_[GroupId::kWorld].all_reduce(
      {maxima.data(), DType::kF32, Shape{static_cast<std::int64_t>(maxima.size())}}, ReduceOp::kMax,
      Purpose::kControl, host);
  fp8_->end_step(maxima, context_.compute);
}

/// Otherwise each rank would scale the first step by what its own part of the batch needs,
/// micro-batch after micro-batch, and its loss would depend on the layout.
void Engine::see_first_batch(const LoadBatch& data,
                             std::int64_t start_sample,
                             const StepParams& params) {
  fp8_->begin_step(context_.compute);
  GradientProbe probe(*data_parallel_, parts_);  // keeps gradients from being summed
  StepTimes unused;
  run_micro_batches(data, start_sample, params, probe, unused, Take::kOneByOne);
  update_fp8_scales();
}

void Engine::restore_fp8(const Fp8Scales::State& state) {
  if (fp8_ != nullptr) {
    fp8_->restore(state, context_.compute);
    context_.compute.synchronize();
  }
}

}  // namespace dstrain
