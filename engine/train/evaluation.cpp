#include "engine/train/evaluation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <tuple>

#include <fmt/format.h>

#include "engine/base/amount_text.h"
#include "engine/train/objective/preferences.h"
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
  // Nats, targets that count, and hits among them.
  constexpr std::size_t kFirstSum = 3;
  std::array<double, kFirstSum + std::tuple_size_v<ObjectiveSums>> sums{};
  for (std::int64_t begin = 0; begin < samples; begin += samples_per_round) {
    const std::int64_t first = begin + batch.data_rank * batch.micro_batch;
    const Engine::Evaluation part = engine.evaluate(
        load, first, std::clamp<std::int64_t>(samples - first, 0, batch.micro_batch));
    sums[0] += part.local_loss_sum;
    sums[1] += static_cast<double>(part.counted);
    sums[2] += part.hits;
    for (std::size_t i = 0; i < part.local_sums.size(); ++i) {
      sums[kFirstSum + i] += part.local_sums[i];
    }
  }
  CallerStream host;
  engine.world().all_reduce({sums.data(), DType::kF64, Shape{std::ssize(sums)}}, ReduceOp::kSum,
                            Purpose::kMetric, host);
  const auto targets = static_cast<std::int64_t>(sums[1]);
  ObjectiveSums of_objective{};
  std::copy(sums.begin() + kFirstSum, sums.end(), of_objective.begin());
  return {.loss = engine.objective().mean_loss(sums[0], targets),
          .targets = targets,
          .sums = of_objective,
          .hits = sums[2]};
}

}  // namespace

double SourceLoss::accuracy() const {
  return hits / static_cast<double>(std::max<std::int64_t>(targets, 1));
}

double SourceLoss::perplexity() const {
  return std::exp(loss);
}

std::string describe(const SourceLoss& loss, const PreferenceConfig& config) {
  if (!config.enabled()) {
    return fmt::format(
        "loss {:.4f} nats per token, perplexity {:.3f}, token accuracy {:.4f}, over {} tokens",
        loss.loss, loss.perplexity(), loss.accuracy(), grouped(loss.targets));
  }
  std::string text =
      fmt::format("loss {:.4f} {}", loss.loss, config.of_single_answers() ? "an answer" : "a pair");
  if (const auto found = PreferenceObjective::metrics_of(loss.sums, config)) {
    const auto add = [&](const char* name, const std::optional<double>& value) {
      if (value) text += fmt::format(", {} {:.4f}", name, *value);
    };
    add("accuracy", found->accuracy);
    add("reward of chosen", found->chosen_reward);
    add("of rejected", found->rejected_reward);
    add("divergence", found->divergence);
  }
  return text + fmt::format(", over {}",
                            counted(loss.targets, config.of_single_answers() ? "answer" : "pair"));
}

SourceLoss whole_loss(Engine& engine, const BatchLoader& data) {
  return loss_of_first(engine, data, data.sequences_per_epoch());
}

std::int64_t num_validation_samples(const BatchPlan& batch,
                                    const BatchLoader& data,
                                    std::int64_t batches) {
  const std::int64_t sequences = data.sequences_per_epoch();
  // Compared by division: the product may be more than 2^63.
  return batches > sequences / batch.global_samples() ? sequences
                                                      : batches * batch.global_samples();
}

SourceLoss validation_loss(Engine& engine, const BatchLoader& data, std::int64_t batches) {
  return loss_of_first(engine, data, num_validation_samples(engine.plan().batch, data, batches));
}

}  // namespace dstrain
