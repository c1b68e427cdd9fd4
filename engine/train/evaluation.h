// Evaluation: the mean loss over the same samples of the validation data every time, whatever the
// ranks and their micro-batches.
#pragma once

#include <cstdint>
#include <string>

#include "engine/config/preference_config.h"
#include "engine/data/batch_loader.h"
#include "engine/train/engine.h"

namespace dstrain {

/// The losses of the targets of some sequences, or of the pairs in them.
struct SourceLoss {
  double loss = 0.0;         ///< nats per target, or the loss of preferences of a pair: their mean
  std::int64_t targets = 0;  ///< or answers, or pairs of them
  ObjectiveSums sums{};      ///< of an objective that weighs targets
  double hits = 0.0;         ///< targets that were the likeliest tokens; else 0

  [[nodiscard]] double perplexity() const;
  /// The share of targets that were the likeliest tokens.
  [[nodiscard]] double accuracy() const;
};

/// "loss 2.3 nats per token, perplexity 10, token accuracy 0.51, over 3,000 tokens", or what is
/// known of preferences.
std::string describe(const SourceLoss& loss, const PreferenceConfig& config);

/// The samples of validation_loss().
std::int64_t num_validation_samples(const BatchPlan& batch,
                                    const BatchLoader& data,
                                    std::int64_t batches);

/// Collective. Of each sequence of the data once.
SourceLoss whole_loss(Engine& engine, const BatchLoader& data);

/// Collective. Returns the loss over the first `batches` times train_batch_size samples (as
/// Megatron's eval-iters), or over each sequence of the data once where that is fewer. Which
/// samples these are depends on neither layout nor micro-batch: of a last micro-batch that reaches
/// past them, only the samples before the end count.
SourceLoss validation_loss(Engine& engine, const BatchLoader& data, std::int64_t batches);

}  // namespace dstrain
