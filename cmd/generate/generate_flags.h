// The flags of dstrain generate.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/generate/sampling.h"

namespace dstrain {

/// Tokens to draw where the user names no number.
constexpr std::int64_t kDefaultTokens = 128;
/// Texts side by side, where there are as many and memory has room for them.
constexpr std::int64_t kDefaultTexts = 16;

struct GenerateFlags {
  std::string checkpoint;
  std::string base;
  std::optional<std::string> prompt;
  std::string prompt_file;
  std::string prompts;  ///< a file of JSON lines, for many texts
  std::int64_t samples = 1;
  std::optional<std::int64_t> batch_size;
  std::optional<std::int64_t> max_tokens;
  SamplingRule sampling;
  std::vector<std::string> stops;
  std::string tokenizer;
  std::string dtype;
  int threads = 0;
  bool json = false;
  std::optional<std::int64_t> logprobs;
  bool chat = false;
  std::optional<std::string> system;
  std::string chat_template;
};

}  // namespace dstrain
