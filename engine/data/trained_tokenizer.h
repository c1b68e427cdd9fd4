// The tokenizer that prepare_data is to make of the text itself before it encodes it: which, and
// how an interrupted call's is found again.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "engine/data/found_input.h"
#include "engine/data/prepare_hooks.h"
#include "engine/data/prepare_options.h"
#include "engine/tokenizer/tokenizer_source.h"

namespace dstrain {

/// Whether there is such a one; else the options name a tokenizer.
bool makes_tokenizer(const PrepareOptions& options);

/// The flag that asks for it, and all that decides what comes out, for the resume record.
std::pair<std::string, std::string> training_setting(const PrepareOptions& options,
                                                     const FoundInput& input);

/// Makes it of the files that are for training. None if it was stopped on request. Throws
/// ConfigError.
std::optional<TokenizerSource> train_tokenizer(const PrepareOptions& options,
                                               const FoundInput& input,
                                               const PrepareHooks& hooks);

/// The one that an interrupted call made and kept in the output folder. Throws ConfigError.
TokenizerSource kept_tokenizer(const PrepareOptions& options);

}  // namespace dstrain
