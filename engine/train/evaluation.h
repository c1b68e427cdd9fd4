// Evaluation: the mean loss over the same samples of the validation data every time, whatever the
// ranks and their micro-batches.
#pragma once

#include <cstdint>

#include "engine/data/batch_loader.h"
#include "engine/train/engine.h"

namespace dstrain {

/// Collective. Returns nats per token over the first `batches` times train_batch_size samples (as
/// Megatron's eval-iters), or over each sequence of the data once where that is fewer. Which
/// samples these are depends on neither layout nor micro-batch: of a last micro-batch that reaches
/// past them, only the samples before the end count.
double validation_loss(Engine& engine, const BatchLoader& data, std::int64_t batches);

}  // namespace dstrain
