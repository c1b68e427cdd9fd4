// Fine-tuning as a user meets it: JSON lines in, --check shows what is trained, and the model that
// comes out answers and stops.
#include <chrono>
#include <fstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/harness/program.h"
#include "tests/harness/skip.h"
#include "tests/unit/data/scratch_folder.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using test::ScratchFolder;
using test::write_file;
using testing::Program;

constexpr std::chrono::milliseconds kPatience{60'000};

struct Answer {
  int code = -1;
  std::string out;
  std::string err;
};

Answer run_dstrain(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), testing::dstrain_binary());
  Program program(arguments);
  const auto code = program.wait(kPatience);
  return {code.value_or(-1), program.out(), program.err()};
}

/// A config with two questions and their answers as its data.
std::string write_run(const ScratchFolder& folder) {
  std::string lines;
  for (int i = 0; i < 4; ++i) {
    for (const auto& [question, answer] :
         {std::pair("capital of France?", "Paris"), std::pair("2+2?", "four")}) {
      lines += json{{"messages",
                     {{{"role", "user"}, {"content", question}},
                      {{"role", "assistant"}, {"content", answer}}}}}
                   .dump() +
               "\n";
    }
  }
  write_file(folder / "chats.jsonl", lines);
  write_file(folder / "chat.jinja",
             "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }};{% endfor %}"
             "{% if add_generation_prompt %}<a>{% endif %}");
  const json config = {
      {"train_batch_size", 2},
      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-2}, {"weight_decay", 0}}}}},
      {"model",
       {{"model_type", "llama"},
        {"vocab_size", 256},
        {"hidden_size", 32},
        {"intermediate_size", 64},
        {"num_hidden_layers", 2},
        {"num_attention_heads", 2},
        {"max_position_embeddings", 64}}},
      {"data",
       {{"train", folder / "chats.jsonl"},
        {"validation", folder / "chats.jsonl"},
        {"sequence_length", 64},
        {"tokenizer", "bytes"},
        {"chat_template", folder / "chat.jinja"},
        {"stop_token", ";"}}},
      {"training", {{"steps", 80}, {"device", "cpu"}, {"output_dir", folder / "run"}}}};
  write_file(folder / "run.json", config.dump());
  return folder / "run.json";
}

TEST_CASE("a model fine-tuned on JSON lines answers, and stops", "[cmd]") {
  if (testing::no_dstrain_here()) return;
  const ScratchFolder folder;
  const std::string config = write_run(folder);
  const Answer check = run_dstrain({"launch", config, "--check", "--offline"});
  CHECK(check.code == 0);
  CHECK_THAT(check.out,
             Contains("« » enclose what is trained") && Contains("<a>«") && Contains(";»"));
  CHECK_FALSE(std::filesystem::exists(folder / "run"));
  const Answer trained = run_dstrain({"launch", config, "--num_gpus", "2"});
  INFO(trained.err);
  REQUIRE(trained.code == 0);
  for (const auto& [question, expected] :
       {std::pair("capital of France?", "Paris\n"), std::pair("2+2?", "four\n")}) {
    const Answer answer = run_dstrain({"generate", "--checkpoint", folder / "run", "--chat",
                                       "--chat-template", folder / "chat.jinja", "--prompt",
                                       question, "--temperature", "0", "--stop", ";"});
    INFO(answer.err);
    CHECK(answer.out == expected);
    CHECK_THAT(answer.err, Contains("ended_by=stop"));
  }
  const Answer evaluated = run_dstrain({"evaluate", config});
  CHECK(evaluated.code == 0);
  CHECK_THAT(evaluated.err, Contains("/train: loss ") && Contains("perplexity ") &&
                                Contains("evaluated at step 80: loss "));
}

TEST_CASE("a conversation without an answer stops a start", "[cmd]") {
  if (testing::no_dstrain_here()) return;
  const ScratchFolder folder;
  const std::string config = write_run(folder);
  write_file(folder / "chats.jsonl",
             "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}]}\n");
  const Answer refused = run_dstrain({"launch", config, "--num_gpus", "2"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("chats.jsonl:1: has no answer of the assistant to train on"));
}

}  // namespace
}  // namespace dstrain
