// Makes the tokenizer that prepare_data learns from the text itself before it encodes it, and finds
// again the one of an interrupted call.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "engine/data/found_input.h"
#include "engine/data/prepare_hooks.h"
#include "engine/data/prepare_options.h"
#include "engine/tokenizer/tokenizer_source.h"

namespace dstrain {

/// Whether the options ask for one; otherwise they name a tokenizer.
bool makes_tokenizer(const PrepareOptions& options);

/// The flag that asks for it, and everything that decides the result, for the resume record.
std::pair<std::string, std::string> training_setting(const PrepareOptions& options,
                                                     const FoundInput& input);

/// Makes it from the files for training. Returns nothing if it was stopped on request. Throws
/// ConfigError.
std::optional<TokenizerSource> train_tokenizer(const PrepareOptions& options,
                                               const FoundInput& input,
                                               const PrepareHooks& hooks);

/// Returns the one that an interrupted call made and kept in the output folder. Throws ConfigError.
TokenizerSource kept_tokenizer(const PrepareOptions& options);

}  // namespace dstrain
