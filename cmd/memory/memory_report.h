// MemoryReport: a MemoryEstimate for people, in GiB, and for scripts, in bytes. The text that
// estimate-memory and launch --check print.
#pragma once

#include <string>

#include "engine/config/config.h"
#include "engine/train/memory_estimate.h"

namespace dstrain {

/// `estimate` is that of `config`, which is resolved.
std::string to_text(const MemoryEstimate& estimate, const Config& config);
std::string to_json(const MemoryEstimate& estimate, const Config& config);

/// The last part of to_text: whether it fits, and what to do. Needs a limit.
std::string fit_text(const MemoryEstimate& estimate);

}  // namespace dstrain
