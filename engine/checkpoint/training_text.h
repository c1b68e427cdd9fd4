// A TrainingState in the manifest: its keys "training", "config", "fp8_amax", "optimizer",
// "tokenizer", "data" and "base" (FORMAT.md).
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "engine/checkpoint/checkpoint_contents.h"

namespace dstrain {

// The formats of the manifest, and what each brought; older ones are still read.
inline constexpr int kFirstFormat = 1;
inline constexpr int kFormatWithSkips = 2;      ///< skipped steps, the loss scale, pieces of BF16
inline constexpr int kFormatWithFp8 = 3;        ///< histories of fp8's scales
inline constexpr int kFormatWithTokenizer = 4;  ///< the tokenizer, and what the data held
inline constexpr int kFormatWithNumbers = 5;    ///< numbers of the optimizer's own
inline constexpr int kFormatWithBase = 6;       ///< weights that are not in it
inline constexpr int kFormatWithRollouts = 7;   ///< the checksum of what was sampled
inline constexpr int kFormat = kFormatWithRollouts;

/// The members of the manifest's object, each with a comma behind it.
std::string to_text(const TrainingState& training);
/// Throws CheckpointError, or what the library throws, where a key is missing or of another type.
TrainingState parse_training(const nlohmann::json& document);

}  // namespace dstrain
