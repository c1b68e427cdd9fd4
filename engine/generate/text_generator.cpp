#include "engine/generate/text_generator.h"

#include <algorithm>
#include <chrono>

#include "engine/generate/text_stream.h"

namespace dstrain {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

/// The ids that can be drawn: those that the tokenizer knows, and those that end a text, which it
/// need not know. The vocabulary may be larger than both.
class Drawable {
 public:
  Drawable(std::int64_t vocabulary,
           const Tokenizer& tokenizer,
           const std::vector<std::int32_t>& ends)
      : known_(static_cast<std::size_t>(std::min(vocabulary, tokenizer.vocab_size()))) {
    for (const std::int32_t end : ends) {
      if (end >= static_cast<std::int64_t>(known_) && end < vocabulary) {
        beyond_.push_back(end);
      }
    }
  }

  std::int32_t choose(std::span<const float> logits, const SamplingRule& rule, std::int64_t index) {
    logits_.assign(logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(known_));
    for (const std::int32_t end : beyond_) {
      logits_.push_back(logits[static_cast<std::size_t>(end)]);
    }
    const std::int32_t choice = choose_token(logits_, rule, index);
    const auto at = static_cast<std::size_t>(choice);
    return at < known_ ? choice : beyond_[at - known_];
  }

 private:
  std::size_t known_;
  std::vector<std::int32_t> beyond_;
  std::vector<float> logits_;
};

}  // namespace

std::string_view name_of(EndReason reason) {
  switch (reason) {
    case EndReason::kMaxTokens:
      return "max_tokens";
    case EndReason::kEndOfText:
      return "end_of_text";
    case EndReason::kStopText:
      return "stop_text";
    case EndReason::kAsked:
      return "interrupted";
  }
  return "?";
}

GeneratedText generate_text(CachedModel& model,
                            const Tokenizer& tokenizer,
                            const GenerationRequest& request,
                            const GenerationHooks& hooks) {
  GeneratedText result;
  TextStream stream(tokenizer, request.prompt, request.stops);
  Drawable drawable(model.spec().vocab_size, tokenizer, request.ends);
  const auto give = [&](const std::string& text) {
    if (!text.empty()) {
      result.text += text;
      hooks.on_text(text);
    }
  };
  Clock::time_point began = Clock::now();
  std::span<const float> logits =
      model.extend(request.prompt, [&] { return !hooks.stop_requested(); });
  result.prompt_seconds = seconds_since(began);
  began = Clock::now();
  while (true) {
    if (logits.empty() || hooks.stop_requested()) {
      result.reason = EndReason::kAsked;
      break;
    }
    const auto count = static_cast<std::int64_t>(result.tokens.size());
    if (count == request.max_tokens) {
      result.reason = EndReason::kMaxTokens;
      break;
    }
    const std::int32_t token = drawable.choose(logits, request.sampling, count);
    if (std::find(request.ends.begin(), request.ends.end(), token) != request.ends.end()) {
      result.reason = EndReason::kEndOfText;
      result.end = token;
      break;
    }
    result.tokens.push_back(token);
    hooks.on_token(token, logits);
    give(stream.push(token));
    if (stream.stopped()) {
      result.reason = EndReason::kStopText;
      break;
    }
    if (count + 1 < request.max_tokens) {
      logits = model.extend({&token, 1});
      ++result.steps;
    }
  }
  give(stream.finish());
  if (stream.stopped()) {
    result.reason = EndReason::kStopText;
  }
  result.token_seconds = seconds_since(began);
  return result;
}

}  // namespace dstrain
