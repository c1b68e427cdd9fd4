// The two ways of dstrain generate, which return its exit code. Text goes to stdout as it comes,
// everything about it to stderr.
#pragma once

#include "cmd/generate/generate_flags.h"

namespace dstrain {

/// Continues --prompt, or the text of --prompt-file.
int generate_one(const GenerateFlags& flags);

/// Continues each line of --prompts, several side by side. Each text becomes a line: the prompt's
/// own with its completion, as fine-tuning takes it, in the order of the prompts.
int generate_many(const GenerateFlags& flags);

}  // namespace dstrain
