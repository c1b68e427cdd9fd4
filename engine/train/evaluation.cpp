#include "engine/train/evaluation.h"

#include <algorithm>

#include "kernels/core/caller_stream.h"

namespace dstrain {

double validation_loss(Engine& engine, const BatchLoader& data, std::int64_t batches) {
  const BatchPlan& batch = engine.plan().batch;
  const std::int64_t samples_per_round = batch.micro_batch * batch.data_parallel;
  const std::int64_t rounds =
      std::clamp<std::int64_t>(data.windows_per_epoch() / samples_per_round, 1, batches);
  const LoadBatch load = [&](std::int64_t first_sample, std::span<std::int32_t> inputs,
                             std::span<std::int32_t> targets) {
    data.load(first_sample, inputs, targets);
  };
  double loss_sum = 0.0;
  for (std::int64_t round = 0; round < rounds; ++round) {
    loss_sum +=
        engine.evaluate(load, round * samples_per_round + batch.data_rank * batch.micro_batch);
  }
  CallerStream host;
  engine.world().all_reduce({&loss_sum, DType::kF64, Shape{1}}, ReduceOp::kSum, Purpose::kMetric,
                            host);
  return loss_sum / static_cast<double>(rounds * samples_per_round * batch.sequence);
}

}  // namespace dstrain
