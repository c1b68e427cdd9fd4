// The prompts that a run asks which learns from rewards ("grpo", "ppo"), as its model reads them.
#pragma once

#include <cstdint>
#include <string>

#include "engine/config/config.h"

namespace dstrain {

enum class PromptForm : std::uint8_t {
  kText,
  kJson,  ///< an object with a list of "prompts"
  kFirst  ///< a line for the first one alone
};

/// The first so many, in the order of the run. Throws ConfigError.
std::string inspected_prompts(const Config& config, std::int64_t prompts, PromptForm form);

}  // namespace dstrain
