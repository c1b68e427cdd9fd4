#include "engine/train/evaluation.h"

#include <algorithm>

#include "kernels/core/caller_stream.h"

namespace dstrain {

double validation_loss(Engine& engine, const BatchLoader& data, std::int64_t batches) {
  const BatchPlan& batch = engine.plan().batch;
  const std::int64_t windows = data.windows_per_epoch();
  // Compared by division: the product may be more than 2^63.
  const std::int64_t samples =
      batches > windows / batch.global_samples() ? windows : batches * batch.global_samples();
  const std::int64_t samples_per_round = batch.micro_batch * batch.data_parallel;
  const LoadBatch load = [&](std::int64_t first_sample, std::span<std::int32_t> inputs,
                             std::span<std::int32_t> targets) {
    data.load(first_sample, inputs, targets);
  };
  double loss_sum = 0.0;
  for (std::int64_t begin = 0; begin < samples; begin += samples_per_round) {
    const std::int64_t first = begin + batch.data_rank * batch.micro_batch;
    loss_sum += engine.evaluate(load, first,
                                std::clamp<std::int64_t>(samples - first, 0, batch.micro_batch));
  }
  CallerStream host;
  engine.world().all_reduce({&loss_sum, DType::kF64, Shape{1}}, ReduceOp::kSum, Purpose::kMetric,
                            host);
  return engine.objective().mean_loss(loss_sum, samples);
}

}  // namespace dstrain
