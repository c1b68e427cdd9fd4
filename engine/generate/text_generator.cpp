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

/// Texts on their way, each in a place of the model's caches. A forward reads the next token of
/// each whose prompt is read, and of the other prompts as much as it has room for.
class TextsSideBySide {
 public:
  TextsSideBySide(CachedModel& model,
                  const Tokenizer& tokenizer,
                  const std::vector<GenerationRequest>& requests,
                  const TextsHooks& hooks)
      : model_(model),
        tokenizer_(tokenizer),
        requests_(requests),
        hooks_(hooks),
        of_each_{.stop_requested = hooks.stop_requested},
        places_(static_cast<std::size_t>(model.sizes().texts)) {}

  void generate() {
    while (!hooks_.stop_requested()) {
      begin_texts();
      collect_tokens();
      if (next_.empty()) return;
      hooks_.before_forward();
      model_.extend_each(next_);
      for (std::size_t i = 0; i < next_.size(); ++i) {
        go_on(next_[i].text, model_.logits(i));
      }
    }
    for (Place& place : places_) {
      if (place.text != nullptr) draw(place, {});
    }
  }

 private:
  struct Place {
    std::size_t request = 0;
    std::unique_ptr<GrowingText> text;  // nullptr: the place is free
    std::span<const std::int32_t> prompt;
    std::optional<std::int64_t> twin;  // the place that is reading the prompt for this one too
    std::int32_t token = 0;            // the next one to be read behind the prompt
  };

  [[nodiscard]] Place& at(std::int64_t place) { return places_[static_cast<std::size_t>(place)]; }
  /// How much of a place's prompt is yet to be read.
  [[nodiscard]] std::int64_t left_of_prompt(std::int64_t place) {
    return std::max<std::int64_t>(0, std::ssize(at(place).prompt) - model_.position(place));
  }

  void begin_texts() {
    for (std::int64_t place = 0; place < std::ssize(places_); ++place) {
      while (at(place).text == nullptr && begun_ < requests_.size() && !hooks_.stop_requested()) {
        begin(place, begun_++);
      }
    }
  }

  void begin(std::int64_t to, std::size_t request) {
    Place& place = at(to);
    const GenerationRequest& of = requests_[request];
    const bool is_known = std::ranges::equal(at(last_).prompt, of.prompt);
    place.request = request;
    place.text = std::make_unique<GrowingText>(model_, tokenizer_, of, of_each_);
    place.prompt = of.prompt;
    if (is_known && left_of_prompt(last_) > 0) {
      place.twin = last_;
      return;
    }
    if (!is_known) {
      model_.rewind(0, to);
    } else if (last_ == to) {
      model_.rewind(std::ssize(of.prompt), to);
    } else {
      model_.copy(last_, to, std::ssize(of.prompt));
    }
    last_ = to;
    if (is_known) draw(place, behind_last_);
  }

  void collect_tokens() {
    next_.clear();
    std::int64_t room = model_.sizes().chunk_tokens;
    for (const bool of_prompts : {false, true}) {
      for (std::int64_t i = 0; i < std::ssize(places_) && room > 0; ++i) {
        const Place& place = at(i);
        if (place.text == nullptr || place.twin || (left_of_prompt(i) > 0) != of_prompts) continue;
        const auto count = static_cast<std::size_t>(std::min(room, left_of_prompt(i)));
        const auto begin = static_cast<std::size_t>(model_.position(i));
        next_.push_back(
            {i, of_prompts ? place.prompt.subspan(begin, count) : std::span(&place.token, 1)});
        room -= std::ssize(next_.back().tokens);
      }
    }
  }

  /// With the logits of what follows all that a place has read.
  void go_on(std::int64_t from, std::span<const float> logits) {
    Place& place = at(from);
    if (left_of_prompt(from) > 0) return;
    if (from == last_ && model_.position(from) == std::ssize(place.prompt)) {
      behind_last_.assign(logits.begin(), logits.end());
    }
    for (std::int64_t to = 0; to < std::ssize(places_); ++to) {
      if (at(to).twin != from) continue;
      at(to).twin.reset();
      model_.copy(from, to, std::ssize(place.prompt));
      draw(at(to), logits);
    }
    draw(place, logits);
  }

  void draw(Place& place, std::span<const float> logits) {
    if (const std::optional<std::int32_t> token = place.text->draw(logits)) {
      place.token = *token;
    } else {
      hooks_.on_end(place.request, place.text->finish());
      place.text = nullptr;
    }
  }

  CachedModel& model_;
  const Tokenizer& tokenizer_;
  const std::vector<GenerationRequest>& requests_;
  const TextsHooks& hooks_;
  const GenerationHooks of_each_;
  std::vector<Place> places_;
  std::size_t begun_ = 0;
  std::int64_t last_ = 0;           // the place whose prompt was begun last
  std::vector<float> behind_last_;  // the logits of what follows it, once it is read
  std::vector<CachedModel::Next> next_;
};

/// Generates one text after the other, as models do whose rotation depends on a text's length.
void generate_one_by_one(CachedModel& model,
                         const Tokenizer& tokenizer,
                         const std::vector<GenerationRequest>& requests,
                         const TextsHooks& hooks) {
  const GenerationHooks of_each{.stop_requested = [&] {
    hooks.before_forward();
    return hooks.stop_requested();
  }};
  for (std::size_t i = 0; i < requests.size() && !hooks.stop_requested(); ++i) {
    const std::vector<std::int32_t>& prompt = requests[i].prompt;
    const bool is_known = i > 0 && requests[i - 1].prompt == prompt;
    model.rewind(is_known ? std::ssize(prompt) - 1 : 0);
    hooks.on_end(i, generate_text(model, tokenizer, requests[i], of_each));
  }
}

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
      model.extend(std::span(request.prompt).subspan(static_cast<std::size_t>(model.position())),
                   [&] { return !hooks.stop_requested(); });
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
  if (model.sizes().texts == 1) {
    generate_one_by_one(model, tokenizer, requests, hooks);
  } else {
    TextsSideBySide(model, tokenizer, requests, hooks).generate();
  }
}

}  // namespace dstrain
