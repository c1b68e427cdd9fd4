// Evaluation: the mean loss over the same part of the validation data every time.
#pragma once

#include <cstdint>

#include "engine/data/batch_loader.h"
#include "engine/train/engine.h"

namespace dstrain {

/// Collective. Nats per token over at most `batches` micro-batches of every rank, fewer where the
/// data has fewer windows than that.
double validation_loss(Engine& engine, const BatchLoader& data, std::int64_t batches);

}  // namespace dstrain
