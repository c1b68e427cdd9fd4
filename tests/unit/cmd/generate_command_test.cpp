// dstrain generate as a user meets it: from a run of a tiny model to its text, and every refusal
// with its message.
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/chat/chat_example.h"
#include "tests/harness/program.h"
#include "tests/harness/skip.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using testing::Program;

constexpr std::chrono::milliseconds kPatience{60'000};

struct Ended {
  int exit_code;
  std::string out;
  std::string err;
};

Ended run_dstrain(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), testing::dstrain_binary());
  Program program(std::move(arguments), {{"DSTRAIN_THREADS", "1"}});
  const auto code = program.wait(kPatience);
  REQUIRE(code.has_value());
  return {*code, program.out(), program.err()};
}

/// A tiny model that has learnt to repeat "abcdefgh" in a few dozen steps, in bf16.
class Run {
 public:
  Run() {
    std::string text;
    for (int i = 0; i < 4096; ++i) {
      text += static_cast<char>('a' + i % 8);
    }
    std::filesystem::create_directories(path("in"));
    std::ofstream(path("in/text")) << text;
    REQUIRE(run_dstrain({"prepare-data", "--input", path("in"), "--output", path("data"),
                         "--validation", "0"})
                .exit_code == 0);
    std::ofstream(path("config.json")) << R"({
  "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
  "bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp32"},
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
  "model": {"model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 64, "tie_word_embeddings": true},
  "data": {"train": ")" << path("data/train")
                                       << R"(", "sequence_length": 32},
  "training": {"steps": 60, "device": "cpu", "output_dir": ")"
                                       << path("run") << R"("}
})";
    const Ended trained = run_dstrain({"train", path("config.json")});
    INFO(trained.err);
    REQUIRE(trained.exit_code == 0);
  }

  [[nodiscard]] std::string path(const std::string& name) const {
    return (folder_.path() / name).string();
  }
  [[nodiscard]] Ended generate(std::vector<std::string> more) const {
    std::vector<std::string> arguments{"generate", "--checkpoint", path("run")};
    arguments.insert(arguments.end(), {"--threads", "1"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_dstrain(std::move(arguments));
  }

 private:
  testing::TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("a run's newest checkpoint continues as its data did", "[generate][command]") {
  if (testing::no_dstrain_here()) return;
  const Run run;
  const Ended greedy =
      run.generate({"--prompt", "abcdefghabc", "--temperature", "0", "--max-tokens", "21"});
  CHECK(greedy.exit_code == 0);
  CHECK(greedy.out == "abcdefghabcdefghabcdefghabcdefgh\n");
  CHECK_THAT(greedy.err, Contains("compute=bf16") && Contains("tokenizer=bytes") &&
                             Contains("memory ") && Contains("tokens=21"));
  // The checkpoint is named by its folder of checkpoints, by itself, and read in another dtype.
  for (const char* folder : {"run/checkpoints", "run/checkpoints/step-00000060"}) {
    CHECK(run_dstrain({"generate", "--checkpoint", run.path(folder), "--prompt", "abcdefghabc",
                       "--temperature", "0", "--max-tokens", "21", "--dtype", "fp32"})
              .out == greedy.out);
  }
  CHECK(run.generate({"--prompt", "abcdefghabc", "--temperature", "0", "--stop", "fg"}).out ==
        "abcdefghabcde\n");
  std::ofstream(run.path("prompt")) << "abcdefghab";
  const Ended json = run.generate(
      {"--prompt-file", run.path("prompt"), "--temperature", "0", "--max-tokens", "6", "--json"});
  REQUIRE(json.exit_code == 0);
  const auto parsed = nlohmann::json::parse(json.out);
  CHECK(parsed["prompt"] == "abcdefghab");
  CHECK(parsed["text"] == "cdefgh");
  CHECK(parsed["tokens"] == nlohmann::json({99, 100, 101, 102, 103, 104}));
  CHECK(parsed["ended_by"] == "max_tokens");

  // Drawn, not greedy: the seed says which text.
  const auto drawn = [&](const std::string& seed) {
    return run
        .generate({"--prompt", "h", "--temperature", "3", "--max-tokens", "40", "--seed", seed})
        .out;
  };
  CHECK(drawn("1") == drawn("1"));
  CHECK(drawn("1") != drawn("2"));
}

TEST_CASE("many prompts are continued side by side, each as it would be alone",
          "[generate][command]") {
  if (testing::no_dstrain_here()) return;
  const Run run;
  const std::vector<std::string> prompts{"abcdefghabc", "h", "defgh", "cd", "gha", "b", "efg"};
  {
    std::ofstream file(run.path("prompts.jsonl"));
    for (const std::string& prompt : prompts) {
      file << R"({"id": "of )" << prompt << R"(", "prompt": ")" << prompt << "\"}\n\n";
    }
    file << R"({"prompt": "ab", "completion": "is replaced"})";
  }
  const std::vector<std::string> rule{"--temperature", "2",  "--max-tokens", "20",
                                      "--stop",        "fg", "--dtype",      "fp32"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), rule.begin(), rule.end());
    return run.generate(std::move(more));
  };
  const auto lines_of = [](const Ended& ended) {
    std::vector<nlohmann::json> lines;
    std::istringstream all(ended.out);
    for (std::string line; std::getline(all, line);) {
      lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  };
  const Ended made = with({"--prompts", run.path("prompts.jsonl"), "--seed", "5"});
  INFO(made.err);
  REQUIRE(made.exit_code == 0);
  CHECK_THAT(made.err, Contains("batch_size=8") && Contains("texts=8/8"));
  const auto lines = lines_of(made);
  REQUIRE(lines.size() == prompts.size() + 1);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    INFO(prompts[i]);
    const Ended alone = with({"--prompt", prompts[i], "--seed", std::to_string(5 + i), "--json"});
    REQUIRE(alone.exit_code == 0);
    const auto parsed = nlohmann::json::parse(alone.out);
    CHECK(lines[i]["id"] == "of " + prompts[i]);
    CHECK(lines[i]["prompt"] == prompts[i]);
    CHECK(lines[i]["completion"] == parsed["text"]);
    CHECK(lines[i]["completion_tokens"] == parsed["tokens"].size());
    CHECK(lines[i]["ended_by"] == parsed["ended_by"]);
  }
  CHECK(lines.back()["completion"] != "is replaced");

  // The same, however many at a time; and several of each.
  CHECK(with({"--prompts", run.path("prompts.jsonl"), "--seed", "5", "--batch-size", "3"}).out ==
        made.out);
  const Ended twice =
      with({"--prompts", run.path("prompts.jsonl"), "--seed", "5", "--samples", "2"});
  const auto pairs = lines_of(twice);
  REQUIRE(pairs.size() == 2 * lines.size());
  CHECK(pairs[0] == lines[0]);
  CHECK(pairs[1]["prompt"] == lines[0]["prompt"]);
  CHECK(pairs[1]["completion"] != lines[0]["completion"]);

  // Messages become the prompt of a message, which fine-tuning takes as it is.
  std::ofstream(run.path("asked.jsonl"))
      << R"({"messages": [{"role": "user", "content": "abc"}], "id": 1}
{"prompt": [{"role": "user", "content": "cde"}]})";
  std::ofstream(run.path("asks.jinja")) << "{% for m in messages %}{{ m.content }}{% endfor %}";
  const Ended asked = with(
      {"--prompts", run.path("asked.jsonl"), "--chat", "--chat-template", run.path("asks.jinja")});
  INFO(asked.err);
  REQUIRE(asked.exit_code == 0);
  std::istringstream answers(asked.out);
  const auto messages = lines_of(asked);
  REQUIRE(messages.size() == 2);
  CHECK_FALSE(messages[0].contains("messages"));
  CHECK(messages[0]["id"] == 1);
  CHECK(messages[0]["prompt"][0]["content"] == "abc");
  for (std::string line; std::getline(answers, line);) {
    const auto read = read_chat_example(line);
    REQUIRE(std::holds_alternative<ChatExample>(read));
    const ChatExample& example = std::get<ChatExample>(read);
    CHECK(example.kind == ChatExample::Kind::kCompletion);
    CHECK(example.answer.prompt_messages == 1);
    CHECK(example.answer.conversation.messages.size() == 2);
  }

  // All that is wrong, at once.
  std::ofstream(run.path("wrong.jsonl")) << R"({"prompt": "good"}
{"question": "?"}
{"prompt": ""}
[1]
{"prompt": [{"role": "user", "content": "Hi"}]}
)"
                                         << R"({"prompt": ")" << std::string(64, 'a') << "\"}\n";
  const Ended wrong = run.generate({"--prompts", run.path("wrong.jsonl")});
  CHECK(wrong.exit_code == 2);
  CHECK(wrong.out.empty());
  for (const char* line : {"wrong.jsonl:2: ", "wrong.jsonl:3 is empty",
                           "wrong.jsonl:4: ", "wrong.jsonl:5: ", "wrong.jsonl:6 has 64 tokens"}) {
    CHECK_THAT(wrong.err, Contains(line));
  }
  CHECK(run.generate({"--prompts", run.path("none")}).exit_code == 2);
  CHECK(run.generate({"--prompts", run.path("prompts.jsonl"), "--batch-size", "0"}).exit_code == 2);
  CHECK(run.generate({"--prompts", run.path("prompts.jsonl"), "--prompt", "a"}).exit_code == 2);
}

TEST_CASE("what cannot be generated from is a sentence", "[generate][command]") {
  if (testing::no_dstrain_here()) return;
  const Run run;
  const auto refused = [&](std::vector<std::string> more, int code, const std::string& words) {
    const Ended ended = run.generate(std::move(more));
    CHECK(ended.exit_code == code);
    CHECK(ended.out.empty());
    CHECK_THAT(ended.err, Contains(words));
  };
  refused({}, 2, "--prompt is empty, and tokenizer bytes has no token for the beginning");
  refused({"--prompt", std::string(64, 'a')}, 2, "has 64 tokens, but the model has 64 positions");
  refused({"--prompt", "abc", "--max-tokens", "62"}, 2, "room for 61");
  refused({"--prompt", "a", "--temperature", "-1"}, 2, "--temperature -1: expected 0");
  refused({"--prompt", "a", "--top-p", "0"}, 2, "--top-p 0: expected a probability above 0");
  refused({"--prompt", "a", "--top-k", "-2"}, 2, "--top-k -2: expected");
  refused({"--prompt", "a", "--stop", ""}, 2, "--stop is empty");
  refused({"--prompt-file", run.path("none")}, 2, "cannot be read: No such file");
  refused({"--prompt", "a", "--tokenizer", run.path("none")}, 2,
          "expected bytes, or an existing file or model folder");
  const Ended absent = run_dstrain({"generate", "--checkpoint", run.path("none"), "--prompt", "a"});
  CHECK(absent.exit_code == 2);
  CHECK_THAT(absent.err, Contains("there is no such file or folder"));

  // Parts that older versions left out of a checkpoint lie beside it: a window shorter than the
  // text. At this temperature tokens follow every change of a logit.
  const std::vector<std::string> long_text{"--prompt",      "abcabcabcabcabcabcabcabc",
                                           "--max-tokens",  "40",
                                           "--temperature", "3",
                                           "--seed",        "1",
                                           "--json"};
  const auto tokens_of = [](const Ended& ended) {
    return nlohmann::json::parse(ended.out).at("tokens");
  };
  const Ended unlimited = run.generate(long_text);
  REQUIRE(unlimited.exit_code == 0);
  const std::string config = run.path("run/checkpoints/step-00000060/config.json");
  std::ofstream(config) << R"({"model_type": "mistral", "vocab_size": 256, "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "sliding_window": 2})";
  const Ended windowed = run.generate(long_text);
  REQUIRE(windowed.exit_code == 0);
  CHECK(tokens_of(windowed) != tokens_of(unlimited));
  std::filesystem::remove(config);

  // Weights of somebody who left no word of a tokenizer.
  const std::vector<std::string> foreign{
      "generate", "--checkpoint", "tests/golden/llama-tiny", "--prompt", "a", "--max-tokens", "2"};
  const Ended unknown = run_dstrain(foreign);
  CHECK(unknown.exit_code == 2);
  CHECK_THAT(unknown.err, Contains("does not say which tokenizer"));

  // Bytes all over the weights that are not what was written.
  const std::string file = run.path("run/checkpoints/step-00000060/rank-00000.safetensors");
  REQUIRE(std::filesystem::exists(file));
  std::fstream damaged(file, std::ios::in | std::ios::out | std::ios::binary);
  const auto size = static_cast<std::streamoff>(std::filesystem::file_size(file));
  for (std::streamoff at = size / 2; at < size; at += 64) {
    damaged.seekg(at);
    const int byte = damaged.get();
    damaged.seekp(at);
    damaged.put(static_cast<char>(byte ^ 0x5A));
  }
  damaged.close();
  refused({"--prompt", "a", "--tokenizer", "bytes"}, 5, "rank-00000.safetensors");
}

}  // namespace dstrain
