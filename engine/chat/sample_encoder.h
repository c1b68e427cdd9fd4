// SampleEncoder: fine-tuning data as token ids, and which of them the model is trained to predict.
//
// To find an answer, the conversation is written twice, as transformers writes it: up to the
// question, with the prompt that asks the model for its next message (P), and up to the answer (E).
// E must go on where P ends: what is behind P is what the model has to say there. Where it does
// not, the template asks in one way and answers in another, and the border cannot be decided.
//
//   P  <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n
//   E  <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n
//                                                             ^^^^^^^^^^^^^^^^^^^ trained
//
// Several answers of a conversation share a sample where the longer text has the shorter one in it,
// up to the token that ends the answer. Templates that show earlier answers to the model otherwise
// than it gave them (without its reasoning, with another end) make several samples of it, each with
// what the model sees when it answers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/chat/chat_example.h"
#include "engine/chat/chat_template.h"
#include "engine/config/data_config.h"
#include "engine/tokenizer/tokenizer.h"

namespace dstrain {

/// The part of a pair, or what was thought of an answer.
enum class SampleRole : std::uint8_t { kPlain, kChosen, kRejected };

struct EncodedSample {
  std::vector<std::int32_t> ids{};
  struct Trained {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  std::vector<Trained> trained{};  ///< of the ids, in order; none touches another
  SampleRole role = SampleRole::kPlain;

  [[nodiscard]] std::size_t num_trained() const;
};

/// Counts of what a user should know about samples before training on them.
struct SampleNotes {
  std::int64_t answers = 0;        ///< that are trained
  std::int64_t without_stop = 0;   ///< … and do not end with a stop token
  std::int64_t split_apart = 0;    ///< conversations that became several samples
  std::int64_t across_border = 0;  ///< answers whose first token begins in the prompt
  std::int64_t unasked = 0;        ///< turns of the assistant before any question: not trained

  void add(const SampleNotes& other);
};

struct EncodedExample {
  ChatExample::Kind kind = ChatExample::Kind::kConversation;
  std::vector<EncodedSample> samples{};  ///< of a pair: two, the chosen one first
  SampleNotes notes{};
  std::string why{};  ///< a clause that says why there is none; else empty
};

class SampleEncoder {
 public:
  struct Settings {
    TrainOn train_on = TrainOn::kAssistant;
    AnswersBegin answers_begin = AnswersBegin::kPrompt;
  };
  /// `chat` may be nullptr: then conversations are refused, and texts are not. `stops`: ids behind
  /// which an answer ends. `end_of_text` goes behind texts. All must outlive it.
  SampleEncoder(const Tokenizer& tokenizer,
                const ChatTemplate* chat,
                std::vector<std::int32_t> stops,
                Settings settings);

  /// May be called by several threads at once. Throws ConfigError where the tokenizer does.
  [[nodiscard]] EncodedExample encode(std::string_view line) const;
  [[nodiscard]] const std::vector<std::int32_t>& stops() const { return stops_; }

 private:
  using Ids = std::vector<std::int32_t>;
  [[nodiscard]] std::vector<EncodedSample> encode_conversation(const Conversation& conversation,
                                                               std::size_t first_answer,
                                                               TrainOn train_on,
                                                               SampleNotes& notes) const;
  [[nodiscard]] std::vector<EncodedSample> encode_marked(const Conversation& conversation,
                                                         std::size_t first_answer,
                                                         SampleNotes& notes) const;
  [[nodiscard]] EncodedSample encode_text(const Answer& answer, SampleNotes& notes) const;
  [[nodiscard]] EncodedSample encode_answer(const Answer& answer, SampleNotes& notes) const;
  [[nodiscard]] ChatTemplate::Ends prompt_ends() const;
  [[nodiscard]] Ids ids_of(std::string_view text) const;
  [[nodiscard]] std::size_t behind_stop(const Ids& ids, std::size_t begin) const;

  const Tokenizer& tokenizer_;
  const ChatTemplate* chat_;
  std::vector<std::int32_t> stops_;
  Settings settings_;
};

}  // namespace dstrain
