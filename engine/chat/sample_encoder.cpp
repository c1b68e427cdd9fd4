#include "engine/chat/sample_encoder.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>

#include <fmt/format.h>

namespace dstrain {
namespace {

using Ends = ChatTemplate::Ends;
using Trained = EncodedSample::Trained;

/// Why an example has no samples; becomes the clause.
struct Refusal {
  std::string why;
};

std::size_t common_prefix(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                                  a.begin());
}

bool is_from(const jinja::Value& message, std::string_view role) {
  const jinja::Value* const found = message.find(std::string_view("role"));
  return found != nullptr && found->is_string() && found->string() == role;
}

/// The end of a text, for a sentence.
std::string tail_of(const std::string& text) {
  constexpr std::size_t kShown = 60;
  std::size_t begin = text.size() > kShown ? text.size() - kShown : 0;
  while (begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U) {
    ++begin;
  }
  return (begin > 0 ? "…" : "") + jinja::Value(text.substr(begin)).repr();
}

/// The answer, message `turn`, must go on where the prompt that asks for it ends.
void require_border(const std::string& asked, const std::string& answered, std::size_t turn) {
  if (answered.starts_with(asked)) {
    return;
  }
  const auto same = std::mismatch(asked.begin(), asked.end(), answered.begin(), answered.end());
  throw Refusal{fmt::format(
      "has an answer (message {}) whose beginning cannot be decided: the chat template asks for it "
      "with {}, and writes it behind {}; name a template that writes both alike, or let answers "
      "begin behind the question (answers_begin \"question\")",
      turn + 1, tail_of(asked), tail_of(std::string(asked.begin(), same.first)))};
}

}  // namespace

std::size_t EncodedSample::num_trained() const {
  std::size_t count = 0;
  for (const Trained& part : trained) {
    count += part.end - part.begin;
  }
  return count;
}

void SampleNotes::add(const SampleNotes& other) {
  answers += other.answers;
  without_stop += other.without_stop;
  split_apart += other.split_apart;
  across_border += other.across_border;
  unasked += other.unasked;
}

SampleEncoder::SampleEncoder(const Tokenizer& tokenizer,
                             const ChatTemplate* chat,
                             std::vector<std::int32_t> stops,
                             Settings settings)
    : tokenizer_(tokenizer), chat_(chat), stops_(std::move(stops)), settings_(settings) {}

EncodedExample SampleEncoder::encode(std::string_view line) const {
  EncodedExample encoded;
  auto read = read_chat_example(line);
  if (auto* const why = std::get_if<std::string>(&read)) {
    encoded.why = std::move(*why);
    return encoded;
  }
  const ChatExample& example = std::get<ChatExample>(read);
  encoded.kind = example.kind;
  try {
    const Answer& answer = example.answer;
    if (example.kind == ChatExample::Kind::kConversation) {
      encoded.samples =
          encode_conversation(answer.conversation, 0, settings_.train_on, encoded.notes);
    } else if (example.kind == ChatExample::Kind::kCompletion && !answer.is_text) {
      encoded.samples = encode_conversation(answer.conversation, answer.prompt_messages,
                                            settings_.train_on, encoded.notes);
    } else {
      encoded.samples.push_back(encode_answer(answer, encoded.notes));
      if (example.kind == ChatExample::Kind::kPair) {
        encoded.samples.back().role = SampleRole::kChosen;
        encoded.samples.push_back(encode_answer(*example.rejected, encoded.notes));
        encoded.samples.back().role = SampleRole::kRejected;
      } else if (example.kind == ChatExample::Kind::kRated) {
        encoded.samples.back().role =
            example.is_liked ? SampleRole::kChosen : SampleRole::kRejected;
      }
    }
  } catch (Refusal& refusal) {
    encoded.samples.clear();
    encoded.why = std::move(refusal.why);
  } catch (const jinja::TemplateRefusal& refusal) {
    encoded.samples.clear();
    encoded.why =
        fmt::format("is refused by the chat template of {}: {}", chat_->file(), refusal.what());
  } catch (const jinja::TemplateError& error) {
    encoded.samples.clear();
    encoded.why = fmt::format("cannot be written by the chat template of {}: {}", chat_->file(),
                              error.what());
  }
  return encoded;
}

SampleEncoder::Ids SampleEncoder::ids_of(std::string_view text) const {
  Ids ids;
  tokenizer_.encode(text, ids);
  return ids;
}

ChatTemplate::Ends SampleEncoder::prompt_ends() const {
  return settings_.answers_begin == AnswersBegin::kPrompt ? Ends::kWithPrompt : Ends::kWithMessage;
}

/// Behind the first stop token from `begin` on, or the end.
std::size_t SampleEncoder::behind_stop(const Ids& ids, std::size_t begin) const {
  const auto found = std::find_first_of(ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end(),
                                        stops_.begin(), stops_.end());
  return static_cast<std::size_t>(found - ids.begin()) + (found != ids.end() ? 1 : 0);
}

std::vector<EncodedSample> SampleEncoder::encode_conversation(const Conversation& conversation,
                                                              std::size_t first_answer,
                                                              TrainOn train_on,
                                                              SampleNotes& notes) const {
  if (chat_ == nullptr) {
    throw Refusal{"is a conversation, and there is no chat template to write it with"};
  }
  const jinja::Items& messages = conversation.messages;
  if (train_on == TrainOn::kAll) {
    EncodedSample whole{
        .ids = ids_of(chat_->render(conversation, messages.size(), Ends::kWithMessage).text)};
    whole.trained = {{0, whole.ids.size()}};
    notes.answers += 1;
    notes.without_stop += behind_stop(whole.ids, 0) == whole.ids.size() ? 1 : 0;
    return {std::move(whole)};
  }
  std::vector<std::size_t> turns;
  for (std::size_t i = first_answer; i < messages.size(); ++i) {
    if (!is_from(messages[i], "assistant")) {
      continue;
    }
    if (i == 0 || (i == 1 && is_from(messages[0], "system"))) {
      ++notes.unasked;
    } else {
      turns.push_back(i);
    }
  }
  if (turns.empty()) {
    throw Refusal{"has no answer of the assistant to train on"};
  }
  if (train_on == TrainOn::kLastTurn) {
    turns.erase(turns.begin(), turns.end() - 1);
  } else if (chat_->marks_generation()) {
    return encode_marked(conversation, first_answer, notes);
  }
  std::vector<EncodedSample> samples;  // the longest first
  for (auto turn = turns.rbegin(); turn != turns.rend(); ++turn) {
    const std::string asked = chat_->render(conversation, *turn, prompt_ends()).text;
    const std::string answered = chat_->render(conversation, *turn + 1, Ends::kWithMessage).text;
    require_border(asked, answered, *turn);
    Ids ids = ids_of(answered);
    const Ids prompt = ids_of(asked);
    const std::size_t begin = common_prefix(prompt, ids);
    if (begin == ids.size()) {
      throw Refusal{fmt::format("has an empty answer (message {})", *turn + 1)};
    }
    const std::size_t must_have = behind_stop(ids, begin);
    const bool has_stop = must_have > begin && std::find(stops_.begin(), stops_.end(),
                                                         ids[must_have - 1]) != stops_.end();
    notes.answers += 1;
    notes.without_stop += has_stop ? 0 : 1;
    notes.across_border += begin < prompt.size() ? 1 : 0;
    std::size_t shared = 0;
    const auto with =
        std::find_if(samples.begin(), samples.end(), [&](const EncodedSample& longer) {
          shared = common_prefix(longer.ids, ids);
          return shared >= must_have;
        });
    if (with != samples.end()) {
      with->trained.insert(with->trained.begin(), {begin, shared});
    } else {
      const std::size_t end = ids.size();
      samples.push_back({.ids = std::move(ids), .trained = {{begin, end}}});
    }
  }
  std::reverse(samples.begin(), samples.end());
  notes.split_apart += samples.size() > 1 ? 1 : 0;
  return samples;
}

/// The template says itself what is the model's.
std::vector<EncodedSample> SampleEncoder::encode_marked(const Conversation& conversation,
                                                        std::size_t first_answer,
                                                        SampleNotes& notes) const {
  const auto rendered =
      chat_->render(conversation, conversation.messages.size(), Ends::kWithMessage);
  if (rendered.lost_generated) {
    throw Refusal{
        "is written with {% generation %} within a macro or a kept block, whose place in "
        "the text is not known"};
  }
  EncodedSample sample{.ids = ids_of(rendered.text)};
  const std::string_view text = rendered.text;
  const auto tokens_in = [&](std::size_t bytes) {
    const Ids front = ids_of(text.substr(0, bytes));
    const std::size_t same = common_prefix(front, sample.ids);
    notes.across_border += same < front.size() ? 1 : 0;
    return same;
  };
  const std::size_t earliest =
      first_answer == 0 ? 0
                        : chat_->render(conversation, first_answer, Ends::kWithMessage).text.size();
  for (const jinja::Span& span : rendered.generated) {
    if (span.begin == span.end || span.begin < earliest) {
      continue;
    }
    const Trained part{tokens_in(span.begin), tokens_in(span.end)};
    if (part.begin == part.end) {
      continue;
    }
    notes.answers += 1;
    const std::size_t stop = behind_stop(sample.ids, part.begin);
    const bool has_stop =
        stop <= part.end && stop > part.begin &&
        std::find(stops_.begin(), stops_.end(), sample.ids[stop - 1]) != stops_.end();
    notes.without_stop += has_stop ? 0 : 1;
    if (!sample.trained.empty() && sample.trained.back().end == part.begin) {
      sample.trained.back().end = part.end;
    } else {
      sample.trained.push_back(part);
    }
  }
  if (sample.trained.empty()) {
    throw Refusal{"has nothing that the chat template's {% generation %} encloses"};
  }
  return {std::move(sample)};
}

/// One answer to one prompt: a pair's, or one that was rated.
EncodedSample SampleEncoder::encode_answer(const Answer& answer, SampleNotes& notes) const {
  if (answer.is_text) {
    return encode_text(answer, notes);
  }
  if (chat_ == nullptr) {
    throw Refusal{"is a conversation, and there is no chat template to write it with"};
  }
  const Conversation& conversation = answer.conversation;
  const std::string asked = chat_->render(conversation, answer.prompt_messages, prompt_ends()).text;
  const std::string answered =
      chat_->render(conversation, conversation.messages.size(), Ends::kWithMessage).text;
  require_border(asked, answered, answer.prompt_messages);
  const Ids prompt = ids_of(asked);
  EncodedSample sample{.ids = ids_of(answered)};
  const std::size_t begin = common_prefix(prompt, sample.ids);
  if (begin == sample.ids.size()) {
    throw Refusal{"has an empty answer"};
  }
  notes.answers += 1;
  notes.across_border += begin < prompt.size() ? 1 : 0;
  const std::size_t stop = behind_stop(sample.ids, begin);
  notes.without_stop +=
      std::find(stops_.begin(), stops_.end(), sample.ids[stop - 1]) != stops_.end() ? 0 : 1;
  sample.trained = {{begin, sample.ids.size()}};
  return sample;
}

/// Texts begin with the token that the tokenizer puts in front of every text, and end with its end.
EncodedSample SampleEncoder::encode_text(const Answer& answer, SampleNotes& notes) const {
  Ids front;
  if (tokenizer_.always_begins() && tokenizer_.beginning_of_text()) {
    front.push_back(*tokenizer_.beginning_of_text());
  }
  EncodedSample sample{.ids = front};
  tokenizer_.encode(answer.prompt + answer.text, sample.ids);
  std::size_t begin = 0;
  if (!answer.prompt.empty()) {
    tokenizer_.encode(answer.prompt, front);
    begin = common_prefix(front, sample.ids);
    notes.across_border += begin < front.size() ? 1 : 0;
  }
  if (begin == sample.ids.size()) {
    throw Refusal{"has an empty answer"};
  }
  const auto end = tokenizer_.end_of_text();
  if (end && sample.ids.back() != *end) {
    sample.ids.push_back(*end);
  }
  notes.answers += 1;
  notes.without_stop +=
      std::find(stops_.begin(), stops_.end(), sample.ids.back()) != stops_.end() ? 0 : 1;
  sample.trained = {{begin, sample.ids.size()}};
  return sample;
}

}  // namespace dstrain
