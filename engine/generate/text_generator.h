// generate_text: feeds a prompt's tokens to a CachedModel, then draws one token after the other,
// and hands out text as soon as it is certain. generate_texts: the same of many, side by side, so
// that the parameters are read once for a token of each.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/generate/cached_model.h"
#include "engine/generate/sampling.h"
#include "engine/tokenizer/tokenizer.h"

namespace dstrain {

enum class EndReason : std::uint8_t {
  kMaxTokens,
  kEndOfText,  ///< the model drew an id that ends texts
  kStopText,
  kAsked  ///< GenerationHooks::stop_requested
};
/// "max_tokens", "end_of_text", "stop_text", "interrupted".
std::string_view name_of(EndReason reason);

struct GenerationRequest {
  std::vector<std::int32_t> prompt;  ///< at least one token
  std::int64_t max_tokens = 0;
  SamplingRule sampling;
  std::vector<std::string> stops;  ///< the text ends before the first of them
  std::vector<std::int32_t> ends;  ///< ids that end it
};

struct GenerationHooks {
  std::function<void(std::string_view)> on_text = [](std::string_view) {};
  /// Called with each token of GeneratedText::tokens, and the logits [V] that it was drawn from.
  std::function<void(std::int32_t, std::span<const float>)> on_token =
      [](std::int32_t, std::span<const float>) {};
  std::function<bool()> stop_requested = [] { return false; };
};

struct GeneratedText {
  std::string text;                  ///< whole UTF-8, all that on_text has seen
  std::vector<std::int32_t> tokens;  ///< those drawn, without the id that ended the text
  std::optional<std::int32_t> end;   ///< that id
  EndReason reason = EndReason::kMaxTokens;
  double prompt_seconds = 0.0;  ///< until the first token could be drawn
  double token_seconds = 0.0;   ///< for all that came behind it
  std::int64_t steps = 0;       ///< forwards of one token, in token_seconds
};

/// `model` must have read nothing yet, or a part of the prompt, and have room for the prompt and
/// max_tokens - 1. Only ids of `tokenizer` are drawn; the model's vocabulary may be larger.
GeneratedText generate_text(CachedModel& model,
                            const Tokenizer& tokenizer,
                            const GenerationRequest& request,
                            const GenerationHooks& hooks);

struct TextsHooks {
  /// Called before each forward of the model, and maybe once more.
  std::function<void()> before_forward = [] {};
  /// Called with each text as it ends, and its place among the requests.
  std::function<void(std::size_t, GeneratedText)> on_end = [](std::size_t, GeneratedText) {};
  /// If it says so, those that have begun end, and no other begins.
  std::function<bool()> stop_requested = [] { return false; };
};

/// Generates as many texts at a time as the model reads side by side: where one ends, the next
/// begins, and its prompt is read beside the others' tokens. A prompt that equals the one before it
/// is read once for both.
void generate_texts(CachedModel& model,
                    const Tokenizer& tokenizer,
                    const std::vector<GenerationRequest>& requests,
                    const TextsHooks& hooks);

}  // namespace dstrain
