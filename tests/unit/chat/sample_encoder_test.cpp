// Templates here are of our own; scripts/check_chat asks those of real families, beside
// transformers and TRL.
#include "engine/chat/sample_encoder.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace dstrain {
namespace {

constexpr const char* kPlain =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";
/// Thoughts are written in the last answer alone, as Qwen3's does.
constexpr const char* kForgetsThoughts =
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and loop.last %}"
    "({{ m.reasoning_content }}){% endif %}{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";
/// The model is asked with a thought begun, which the answers do not have, as DeepSeek-R1's does.
constexpr const char* kAsksOtherwise =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}<assistant>(think){% endif %}";
/// The system's message goes into the last question, if nobody answered it, as Mistral-Nemo's does.
constexpr const char* kLosesSystem =
    "{% set s = messages[0].content %}{% for m in messages[1:] %}[{% if loop.last and m.role == "
    "'user' %}{{ s }} {% endif %}{{ m.content }}]{% endfor %}";
constexpr const char* kMarks =
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ "
    "m.content "
    "}};{% endgeneration %}{% else %}{{ m.content }};{% endif %}{% endfor %}";
/// Answers end with "." where they are the last, as gpt-oss' do; "." is what stops the model.
constexpr const char* kEndsOtherwise =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ '.' if loop.last and m.role == "
    "'assistant' else ';' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

const std::string kTwoTurns =
    R"({"messages": [{"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1", "reasoning_content": "t1"},)"
    R"( {"role": "user", "content": "q2"}, {"role": "assistant", "content": "a2", "reasoning_content": "t2"}]})";

EncodedExample encode(const char* source,
                      const std::string& line,
                      SampleEncoder::Settings settings = {},
                      std::vector<std::int32_t> stops = {';', '.'}) {
  static const auto kBytes = make_byte_tokenizer();
  const ChatTemplate chat("t.jinja", source, {});
  return SampleEncoder(*kBytes, &chat, std::move(stops), settings).encode(line);
}

/// The sample's text, answers in brackets. With a byte a token, ids are the text.
std::string shown(const EncodedSample& sample) {
  std::string text;
  for (std::size_t i = 0; i < sample.ids.size(); ++i) {
    for (const auto& part : sample.trained) {
      text += part.end == i ? "}" : "";
    }
    for (const auto& part : sample.trained) {
      text += part.begin == i ? "{" : "";
    }
    text += static_cast<char>(sample.ids[i]);
  }
  for (const auto& part : sample.trained) {
    text += part.end == sample.ids.size() ? "}" : "";
  }
  return text;
}

std::vector<std::string> shown(const EncodedExample& example) {
  CHECK(example.why == "");
  std::vector<std::string> texts;
  for (const EncodedSample& sample : example.samples) {
    texts.push_back(shown(sample));
  }
  return texts;
}

using Texts = std::vector<std::string>;

TEST_CASE("answers are what comes behind the prompt that asks for them", "[chat]") {
  const EncodedExample example = encode(kPlain, kTwoTurns);
  CHECK(shown(example) == Texts{"<user>q1;<assistant>{a1;}<user>q2;<assistant>{a2;}"});
  CHECK(example.notes.answers == 2);
  CHECK(example.notes.without_stop == 0);
  CHECK(example.samples[0].num_trained() == 6);
}

TEST_CASE("what is trained may be the last turn, or everything", "[chat]") {
  CHECK(shown(encode(kPlain, kTwoTurns, {.train_on = TrainOn::kLastTurn})) ==
        Texts{"<user>q1;<assistant>a1;<user>q2;<assistant>{a2;}"});
  CHECK(shown(encode(kPlain, kTwoTurns, {.train_on = TrainOn::kAll})) ==
        Texts{"{<user>q1;<assistant>a1;<user>q2;<assistant>a2;}"});
}

TEST_CASE("a template that rewrites its history makes a sample of every answer", "[chat]") {
  const EncodedExample thoughts = encode(kForgetsThoughts, kTwoTurns);
  CHECK(shown(thoughts) == Texts{"<user>q1;<assistant>{(t1)a1;}",
                                 "<user>q1;<assistant>a1;<user>q2;<assistant>{(t2)a2;}"});
  CHECK(thoughts.notes.split_apart == 1);
  CHECK(shown(encode(kEndsOtherwise, kTwoTurns)) ==
        Texts{"<user>q1;<assistant>{a1.}", "<user>q1;<assistant>a1;<user>q2;<assistant>{a2.}"});
}

TEST_CASE("a border that cannot be decided is refused, with what is in its way", "[chat]") {
  const std::string why = encode(kAsksOtherwise, kTwoTurns).why;
  CHECK(why.find("has an answer (message 4) whose beginning cannot be decided") == 0);
  CHECK(why.find("<assistant>(think)'") != std::string::npos);
  CHECK(shown(encode(kAsksOtherwise, kTwoTurns, {.answers_begin = AnswersBegin::kQuestion})) ==
        Texts{"<user>q1;{<assistant>a1;}<user>q2;{<assistant>a2;}"});
  CHECK_THAT(
      encode(
          kAsksOtherwise,
          R"({"prompt": [{"role": "user", "content": "q"}], "chosen": [{"role": "assistant", "content": "a"}], "rejected": [{"role": "assistant", "content": "b"}]})")
          .why,
      Catch::Matchers::Contains("message 2) whose beginning cannot be decided"));
  const std::string system =
      R"({"messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})";
  CHECK(encode(kLosesSystem, system).why.find("cannot be decided") != std::string::npos);
}

TEST_CASE("a template that marks answers is believed", "[chat]") {
  const EncodedExample example = encode(kMarks, kTwoTurns);
  CHECK(shown(example) == Texts{"<user>q1;<assistant>{a1;}<user>q2;<assistant>{a2;}"});
  CHECK(example.notes.answers == 2);
}

TEST_CASE("answers without a stop token, and turns that nobody asked for, are counted", "[chat]") {
  const EncodedExample example = encode(kPlain, kTwoTurns, {}, {'#'});
  CHECK(example.notes.without_stop == 2);
  const EncodedExample greeting = encode(
      kPlain,
      R"({"messages": [{"role": "assistant", "content": "hi"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})");
  CHECK(shown(greeting) == Texts{"<assistant>hi;<user>q;<assistant>{a;}"});
  CHECK(greeting.notes.unasked == 1);
}

TEST_CASE("a conversation without an answer is none to train on", "[chat]") {
  CHECK(encode(kPlain, R"({"messages": [{"role": "user", "content": "q"}]})").why ==
        "has no answer of the assistant to train on");
  CHECK(encode("{{ raise_exception('no system please') }}", kTwoTurns).why ==
        "is refused by the chat template of t.jinja: no system please");
}

TEST_CASE("of a prompt's messages nothing is trained, and what follows the last answer is left out",
          "[chat]") {
  CHECK(
      shown(encode(
          kPlain,
          R"({"prompt": [{"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1"}, {"role": "user", "content": "q2"}], "completion": [{"role": "assistant", "content": "a2"}]})")) ==
      Texts{"<user>q1;<assistant>a1;<user>q2;<assistant>{a2;}"});
  CHECK(
      shown(encode(
          kPlain,
          R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "thanks"}]})")) ==
      Texts{"<user>q;<assistant>{a;}"});
}

TEST_CASE("pairs are two samples with the same prompt, rated answers one", "[chat]") {
  const EncodedExample pair = encode(
      kPlain,
      R"({"prompt": [{"role": "user", "content": "q"}], "chosen": [{"role": "assistant", "content": "good"}], "rejected": [{"role": "assistant", "content": "bad"}]})");
  CHECK(shown(pair) == Texts{"<user>q;<assistant>{good;}", "<user>q;<assistant>{bad;}"});
  CHECK(pair.samples[0].role == SampleRole::kChosen);
  CHECK(pair.samples[1].role == SampleRole::kRejected);
  const EncodedExample rated =
      encode(kPlain, R"({"prompt": "1+1=", "completion": "3", "label": false})");
  CHECK(shown(rated) == Texts{"1+1={3}"});
  CHECK(rated.samples[0].role == SampleRole::kRejected);
}

}  // namespace
}  // namespace dstrain
