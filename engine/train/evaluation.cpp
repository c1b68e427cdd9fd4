#include "engine/train/evaluation.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/core/caller_stream.h"

namespace dstrain {

namespace {

SourceLoss loss_of_first(Engine& engine, const BatchLoader& data, std::int64_t samples) {
  const BatchPlan& batch = engine.plan().batch;
  const std::int64_t samples_per_round = batch.micro_batch * batch.data_parallel;
  const LoadBatch load = [&](std::int64_t first_sample, std::span<std::int32_t> inputs,
                             std::span<std::int32_t> targets) {
    data.load(first_sample, inputs, targets);
  };
  std::array<double, 2> sums{};  // nats, targets that count
  for (std::int64_t begin = 0; begin < samples; begin += samples_per_round) {
    const std::int64_t first = begin + batch.data_rank * batch.micro_batch;
    const Engine::Evaluation part = engine.evaluate(
        load, first, std::clamp<std::int64_t>(samples - first, 0, batch.micro_batch));
    sums[0] += part.local_loss_sum;
    sums[1] += static_cast<double>(part.counted);
  }
  CallerStream host;
  engine.world().all_reduce({sums.data(), DType::kF64, Shape{2}}, ReduceOp::kSum, Purpose::kMetric,
                            host);
  const auto targets = static_cast<std::int64_t>(sums[1]);
  return {.loss = engine.objective().mean_loss(sums[0], targets), .targets = targets};
}

}  // namespace

double SourceLoss::perplexity() const {
  return std::exp(loss);
}

SourceLoss whole_loss(Engine& engine, const BatchLoader& data) {
  return loss_of_first(engine, data, data.sequences_per_epoch());
}

double validation_loss(Engine& engine, const BatchLoader& data, std::int64_t batches) {
  const BatchPlan& batch = engine.plan().batch;
  const std::int64_t sequences = data.sequences_per_epoch();
  // Compared by division: the product may be more than 2^63.
  const std::int64_t samples =
      batches > sequences / batch.global_samples() ? sequences : batches * batch.global_samples();
  return loss_of_first(engine, data, samples).loss;
}

}  // namespace dstrain
