#include "engine/generate/text_generator.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

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

/// A text on its way.
class GrowingText {
 public:
  GrowingText(const CachedModel& model,
              const Tokenizer& tokenizer,
              const GenerationRequest& request,
              const GenerationHooks& hooks)
      : request_(request),
        hooks_(hooks),
        stream_(tokenizer, request.prompt, request.stops),
        drawable_(model.spec().vocab_size, tokenizer, request.ends) {}

  /// Draws a token from the logits of what follows. Returns it where the model is to read it;
  /// nothing: the text has ended. Logits are empty where it was asked to.
  std::optional<std::int32_t> draw(std::span<const float> logits) {
    const auto end_by = [&](EndReason reason) {
      result_.reason = reason;
      return std::nullopt;
    };
    if (logits.empty() || hooks_.stop_requested()) return end_by(EndReason::kAsked);
    const auto count = static_cast<std::int64_t>(result_.tokens.size());
    if (count == request_.max_tokens) return end_by(EndReason::kMaxTokens);
    const std::int32_t token = drawable_.choose(logits, request_.sampling, count);
    if (std::find(request_.ends.begin(), request_.ends.end(), token) != request_.ends.end()) {
      result_.end = token;
      return end_by(EndReason::kEndOfText);
    }
    result_.tokens.push_back(token);
    hooks_.on_token(token, logits);
    give(stream_.push(token));
    if (stream_.stopped()) return end_by(EndReason::kStopText);
    if (count + 1 == request_.max_tokens) return end_by(EndReason::kMaxTokens);
    return token;
  }

  GeneratedText finish() {
    give(stream_.finish());
    if (stream_.stopped()) result_.reason = EndReason::kStopText;
    return std::move(result_);
  }

 private:
  void give(const std::string& text) {
    if (!text.empty()) {
      result_.text += text;
      hooks_.on_text(text);
    }
  }

  const GenerationRequest& request_;
  const GenerationHooks& hooks_;
  TextStream stream_;
  Drawable drawable_;
  GeneratedText result_;
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
  GrowingText text(model, tokenizer, request, hooks);
  Clock::time_point began = Clock::now();
  std::span<const float> logits =
      model.extend(request.prompt, [&] { return !hooks.stop_requested(); });
  const double prompt_seconds = seconds_since(began);
  began = Clock::now();
  std::int64_t steps = 0;
  while (const std::optional<std::int32_t> token = text.draw(logits)) {
    logits = model.extend({&*token, 1});
    ++steps;
  }
  GeneratedText result = text.finish();
  result.prompt_seconds = prompt_seconds;
  result.token_seconds = seconds_since(began);
  result.steps = steps;
  return result;
}

void generate_texts(CachedModel& model,
                    const Tokenizer& tokenizer,
                    const std::vector<GenerationRequest>& requests,
                    const TextsHooks& hooks) {
  const GenerationHooks of_each{.stop_requested = hooks.stop_requested};
  struct Reader {
    std::size_t request = 0;
    std::unique_ptr<GrowingText> text;        // nullptr: the place is free
    const GenerationRequest* read = nullptr;  // whose prompt is in the cache
  };
  std::vector<Reader> places(static_cast<std::size_t>(model.sizes().texts));
  std::size_t last = 0;            // the place that read a prompt last
  std::vector<float> behind_last;  // the logits of what follows it
  std::vector<CachedModel::Next> next;
  const auto go_on = [&](std::size_t place, std::span<const float> logits) {
    Reader& of = places[place];
    if (const std::optional<std::int32_t> token = of.text->draw(logits)) {
      next.push_back({static_cast<std::int64_t>(place), *token});
    } else {
      hooks.on_end(of.request, of.text->finish());
      of.text = nullptr;
    }
  };
  const auto begin = [&](std::size_t place, std::size_t request) {
    Reader& of = places[place];
    const std::vector<std::int32_t>& prompt = requests[request].prompt;
    const auto text = static_cast<std::int64_t>(place);
    const bool is_read = places[last].read != nullptr && places[last].read->prompt == prompt;
    if (is_read && last != place) {
      model.copy(static_cast<std::int64_t>(last), text, std::ssize(prompt));
    } else if (is_read) {
      model.rewind(std::ssize(prompt), text);
    } else {
      hooks.before_forward();
      model.rewind(0, text);
      const std::span<const float> logits = model.extend(
          prompt, [] { return true; }, text);
      behind_last.assign(logits.begin(), logits.end());
    }
    last = place;
    of = {.request = request,
          .text = std::make_unique<GrowingText>(model, tokenizer, requests[request], of_each),
          .read = &requests[request]};
    go_on(place, behind_last);
  };
  std::vector<CachedModel::Next> read;
  std::size_t begun = 0;
  do {
    for (std::size_t place = 0; place < places.size(); ++place) {
      while (places[place].text == nullptr && begun < requests.size() && !hooks.stop_requested()) {
        begin(place, begun++);
      }
    }
    read.swap(next);
    next.clear();
    if (read.empty()) continue;
    hooks.before_forward();
    model.extend_each(read);
    for (std::size_t i = 0; i < read.size(); ++i) {
      go_on(static_cast<std::size_t>(read[i].text), model.logits(i));
    }
  } while (!next.empty() || (begun < requests.size() && !hooks.stop_requested()));
}

}  // namespace dstrain
