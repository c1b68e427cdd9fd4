// The command as a user meets it: its own process, its exit codes, what it prints where.
#include <cstdio>
#include <cstdlib>
#include <string>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "tests/harness/skip.h"
#include "tests/unit/data/scratch_folder.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using test::ScratchFolder;
using test::write_file;

struct Ended {
  int exit_code;
  std::string standard_output;
  std::string standard_error;
};

/// Runs `dstrain prepare-data ARGUMENTS` from a shell.
Ended run(const ScratchFolder& folder,
          const std::string& arguments,
          const std::string& before = "") {
  const char* binary = std::getenv("DSTRAIN_BINARY");
  REQUIRE(binary != nullptr);
  const std::string out = folder / "stdout";
  const std::string err = folder / "stderr";
  const int status = std::system(
      (before + "'" + binary + "' prepare-data " + arguments + " >" + out + " 2>" + err).c_str());
  REQUIRE(WIFEXITED(status));
  return {WEXITSTATUS(status), test::read_file(out), test::read_file(err)};
}

TEST_CASE("prepare-data says what it made, for people and as JSON", "[data][command]") {
  if (testing::no_dstrain_here()) return;
  const ScratchFolder folder;
  write_file(folder / "in/a.h", "int a;\n");
  write_file(folder / "in/b.hpp", "int b;\n");
  write_file(folder / "in/c.md", "# c\n");
  const std::string input = "--input " + (folder / "in") + " --validation 0 ";
  const Ended people = run(folder, input + "--output " + (folder / "p"));
  CHECK(people.exit_code == 0);
  CHECK_THAT(people.standard_output,
             Contains("3 documents") && Contains("18 tokens") && Contains(folder / "p/train.bin"));
  const Ended json =
      run(folder, input + "--output " + (folder / "j") + " --extensions .h,hpp --json");
  REQUIRE(json.exit_code == 0);
  CHECK(nlohmann::json::parse(json.standard_output)["train"]["tokens"] == 14);
}

TEST_CASE("prepare-data ends with 2 for wrong use and 6 for a full disk", "[data][command]") {
  if (testing::no_dstrain_here()) return;
  const ScratchFolder folder;
  write_file(folder / "in/a", std::string(300000, 'a'));
  const std::string output = " --output " + (folder / "out");
  CHECK(run(folder, "--output x").exit_code == 2);
  CHECK(run(folder, "--input x --no-such-flag" + output).exit_code == 2);
  CHECK(run(folder, "--tokenizer bytes --train-sentencepiece 300 --input x" + output).exit_code ==
        2);
  const Ended missing = run(folder, "--input " + (folder / "absent") + output);
  CHECK(missing.exit_code == 2);
  CHECK_THAT(missing.standard_error, Contains((folder / "absent") + ": No such file"));
  // A limit of 100 kB a file stands for the full disk.
  const Ended full = run(folder, "--validation 0 --input " + (folder / "in") + output,
                         "trap '' XFSZ; ulimit -f 100; ");
  CHECK(full.exit_code == 6);
  CHECK_THAT(full.standard_error, Contains((folder / "out/train.bin") + ".partial"));
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
}

TEST_CASE("prepare-data takes JSON lines, and JSON as it is written where it is told to",
          "[data][command]") {
  if (testing::no_dstrain_here()) return;
  const ScratchFolder folder;
  write_file(folder / "in/a.jsonl", "{\"text\": \"one\"}\n{\"body\": \"two\"}\n{\"text\": 3}\n");
  const std::string flags =
      "--validation 0 --input " + (folder / "in") + " --output " + (folder / "out");
  const Ended stopped = run(folder, flags);
  CHECK(stopped.exit_code == 2);
  CHECK_THAT(stopped.standard_error, Contains((folder / "in/a.jsonl") + ":2: has no field") &&
                                         Contains("--on-bad-line skip"));
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
  const Ended skipped = run(folder, flags + " --on-bad-line skip");
  CHECK(skipped.exit_code == 0);
  CHECK_THAT(skipped.standard_output, Contains("1 documents") && Contains("2 bad lines") &&
                                          Contains("a.jsonl:3: field \"text\" is a number"));
  const auto json = nlohmann::json::parse(
      run(folder, flags + " --overwrite --field body --on-bad-line skip --json").standard_output);
  CHECK(json["train"]["tokens"] == 3);
  CHECK(json["skipped"]["bad_lines"] == 2);
  CHECK(json["bad_lines"].size() == 2);
  const Ended taken = run(folder, flags + " --overwrite --as-text .jsonl,json");
  CHECK(taken.exit_code == 0);
  CHECK_THAT(taken.standard_output, Contains("1 documents"));
  const Ended left_out = run(folder, flags + " --overwrite --exclude '*.jsonl'");
  CHECK(left_out.exit_code == 2);
  CHECK_THAT(left_out.standard_error, Contains("no text for training in 0 files"));
  const Ended wrong = run(folder, flags + " --overwrite --as-text gz");
  CHECK(wrong.exit_code == 2);
  CHECK_THAT(wrong.standard_error, Contains("--as-text gz") && Contains("jsonl"));
  CHECK(run(folder, flags + " --overwrite --on-bad-line maybe").exit_code == 2);
}

TEST_CASE("prepare-data learns a tokenizer, and asks for what that needs", "[data][command]") {
  if (testing::no_dstrain_here()) return;
  const ScratchFolder folder;
  write_file(folder / "in/a.txt", "some words and more words, some words\n");
  const std::string flags =
      "--validation 0 --input " + (folder / "in") + " --output " + (folder / "out");
  // Bytes, the end, and the merges of "words" and "some", whose pairs alone occur twice.
  const Ended made = run(folder, flags +
                                     " --train-tokenizer bpe --vocab-size 264 --split-pattern "
                                     "'[a-z]+|[^a-z]' --end-token '</end>'");
  INFO(made.standard_error);
  REQUIRE(made.exit_code == 0);
  CHECK_THAT(made.standard_output,
             Contains("huggingface:" + (folder / "out/tokenizer.json") + ": vocabulary 264"));
  CHECK_THAT(made.standard_error, Contains("learned a tokenizer of 264 tokens from 7 distinct"));
  const auto json = nlohmann::json::parse(test::read_file(folder / "out/tokenizer.json"));
  CHECK(json["model"]["vocab"]["</end>"] == 0);
  CHECK(json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] == "[a-z]+|[^a-z]");
  CHECK(nlohmann::json::parse(test::read_file(folder / "out/dataset.json"))["append_eod"] == 0);
  const Ended twice = run(folder, flags + " --train-tokenizer bpe --vocab-size 265");
  CHECK(twice.exit_code == 2);
  CHECK_THAT(twice.standard_error, Contains("--overwrite replaces it"));
  const Ended sizeless = run(folder, flags + " --overwrite --train-tokenizer bpe");
  CHECK(sizeless.exit_code == 2);
  CHECK_THAT(sizeless.standard_error, Contains("expected --vocab-size N"));
  for (const char* wrong : {" --train-tokenizer wordpiece --vocab-size 300", " --vocab-size 300",
                            " --train-tokenizer bpe --vocab-size 300 --tokenizer bytes",
                            " --train-tokenizer bpe --vocab-size 300 --train-sentencepiece 300"}) {
    CHECK(run(folder, flags + " --overwrite" + wrong).exit_code == 2);
  }
}

TEST_CASE("prepare-data --inspect prints samples with their documents' borders",
          "[data][command]") {
  if (testing::no_dstrain_here()) return;
  const ScratchFolder folder;
  write_file(folder / "in/a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"c\\n\u00e9\"}\n");
  const std::string out = folder / "out";
  REQUIRE(
      run(folder, "--validation 0 --append-eod 256 --input " + (folder / "in") + " --output " + out)
          .exit_code == 0);
  // a b end c \n and the two bytes of é, end: 8 tokens.
  const Ended json = run(folder, "--inspect 5 --sequence-length 6 --json " + out);
  INFO(json.standard_error);
  REQUIRE(json.exit_code == 0);
  const auto told = nlohmann::json::parse(json.standard_output);
  CHECK(told["sources"] ==
        nlohmann::json{{{"prefix", out + "/train"}, {"tokens", 8}, {"documents", 2}}});
  REQUIRE(told["samples"].size() == 1);  // no more than an epoch has
  const auto parts = told["samples"][0]["documents"];
  REQUIRE(parts.size() == 2);
  CHECK(parts[0] == nlohmann::json{{"document", 0},
                                   {"first_token", 0},
                                   {"ends", true},
                                   {"ids", {97, 98, 256}},
                                   {"positions", {0, 1, 2}},
                                   {"loss_mask", {1, 1, 1}},
                                   {"text", "ab"}});
  CHECK(parts[1]["document"] == 1);
  CHECK(parts[1]["ends"] == false);
  CHECK(parts[1]["ids"] == nlohmann::json{99, 10, 195});

  const Ended people = run(folder, "--inspect 1 --sequence-length 6 " + out + "/train.bin");
  CHECK(people.exit_code == 0);
  CHECK_THAT(people.standard_output, Contains("8 tokens in 2 documents") && Contains("97 ‹a›") &&
                                         Contains("256 ‹(document's end)›") &&
                                         Contains("10 ‹\\n›") && Contains("195 ‹\\xc3›") &&
                                         Contains("└ ends") && Contains("┆ continues") &&
                                         !Contains("\x1b["));
  // Packed, both are cut at no place: a b end, and what the other's 5 tokens leave room for.
  const Ended packed = run(folder, "--inspect 9 --pack --sequence-length 6 --json " + out);
  REQUIRE(packed.exit_code == 0);
  const auto whole = nlohmann::json::parse(packed.standard_output);
  CHECK(whole["sources"][0]["packing"] ==
        nlohmann::json{{"samples", 2}, {"cut_documents", 0}, {"fill", 8.0 / 12.0}});
  REQUIRE(whole["samples"].size() == 2);
  for (const auto& sample : whole["samples"]) {
    REQUIRE(sample["documents"].size() == 2);
    const auto& document = sample["documents"][0];
    CHECK(document["first_token"] == 0);
    CHECK(document["ends"] == true);
    CHECK(document["loss_mask"].back() == 0);  // nothing is behind it
    const auto& filling = sample["documents"][1];
    CHECK(filling["document"].is_null());
    CHECK(filling["fills_up"] == true);
    CHECK(document["ids"].size() + filling["ids"].size() == 6);
    CHECK(filling["loss_mask"].back() == 0);
  }
  CHECK_THAT(run(folder, "--inspect 1 --pack --sequence-length 8 " + out).standard_output,
             Contains("packed into 1 sample of 8 tokens, 100.00 % full; 0 documents longer") &&
                 Contains("sample 0: 2 documents in 8 of 8 tokens"));
  CHECK(run(folder, "--pack --input x --output y").exit_code == 2);

  CHECK(run(folder, "--inspect 1 --sequence-length 8 " + out).exit_code == 2);
  CHECK(run(folder, "--inspect 1").exit_code == 2);
  CHECK(run(folder, "--inspect 1 " + (folder / "absent")).exit_code == 2);
  CHECK(run(folder, "stray --input x --output y").exit_code == 2);
}

/// A run on documents that see themselves alone and whose ends predict nothing.
std::string write_run(const ScratchFolder& folder, const std::string& more_of_data) {
  write_file(folder / "run.json", R"({
    "train_batch_size": 64, "optimizer": {"type": "AdamW"}, "tensor_parallel": {"size": 2},
    "model": {"model_type": "llama", "vocab_size": 257, "hidden_size": 64, "intermediate_size": 96,
              "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
              "max_position_embeddings": 128},
    "data": {"document_attention": true, "mask_document_ends": true, )" +
                                      more_of_data + R"(},
    "training": {"steps": 10, "output_dir": "run"}})");
  return folder / "run.json";
}

TEST_CASE("prepare-data --inspect --config prints what that run's model is given",
          "[data][command]") {
  if (testing::no_dstrain_here()) return;
  const ScratchFolder folder;
  write_file(folder / "in/a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"c\\n\u00e9\"}\n");
  const std::string out = folder / "out";
  REQUIRE(
      run(folder, "--validation 0 --append-eod 256 --input " + (folder / "in") + " --output " + out)
          .exit_code == 0);

  const std::string stream = write_run(folder, R"("train": "elsewhere", "sequence_length": 6)");
  const Ended text = run(folder, "--inspect 3 --config " + stream + " " + out);
  INFO(text.standard_error);
  CHECK(text.exit_code == 0);
  CHECK(
      text.standard_output ==
      out + "/train: 8 tokens in 2 documents; tokenizer bytes\n" + stream +
          R"(: samples of 6 tokens; a token sees its own document alone, and positions begin anew in each; token 256, which ends a document, predicts nothing
✗ behind tokens that predict nothing

sample 0: tokens 0 to 5; 1 of 6 predict nothing
  ┌ document 0, from its beginning; positions 0 to 2
  │ 97 ‹a›  98 ‹b›  256 ‹(document's end)›✗
  └ ends
  ┌ document 1, from its beginning; positions 0 to 2
  │ 99 ‹c›  10 ‹\n›  195 ‹\xc3›
  ┆ continues
)");

  const std::string packed = write_run(
      folder, R"("train": ")" + out + R"(/train", "sequence_length": 10, "pack": "best_fit")");
  CHECK_THAT(run(folder, "--inspect 1 --config " + packed).standard_output,
             Contains("sample 0: 2 documents in 8 of 10 tokens; 4 of 10 predict nothing") &&
                 Contains("  ┌ filled up\n  │ 256 ‹(document's end)›✗  256 ‹(document's end)›✗\n"));
  const Ended json = run(folder, "--inspect 1 --json --config " + packed);
  REQUIRE(json.exit_code == 0);
  CHECK(nlohmann::json::parse(json.standard_output) == nlohmann::json::parse(R"({
    "tokenizer": "bytes", "sequence_length": 10,
    "document_attention": true, "mask_document_ends": true,
    "sources": [{"prefix": ")" + out + R"(/train", "tokens": 8, "documents": 2,
                 "packing": {"samples": 1, "cut_documents": 0, "fill": 0.8}}],
    "samples": [{"source": 0, "begin": 3, "documents": [
      {"document": 1, "first_token": 0, "ends": true, "ids": [99, 10, 195, 169, 256],
       "positions": [0, 1, 2, 3, 4], "loss_mask": [1, 1, 1, 1, 0], "text": "c\né"},
      {"document": 0, "first_token": 0, "ends": true, "ids": [97, 98, 256],
       "positions": [0, 1, 2], "loss_mask": [1, 1, 0], "text": "ab"},
      {"document": null, "fills_up": true, "ids": [256, 256],
       "positions": [0, 0], "loss_mask": [0, 0], "text": ""}]}]})"));

  // What the config says is not said twice; and ids that its model has not are refused.
  CHECK(run(folder, "--inspect 1 --pack --config " + packed).exit_code == 2);
  CHECK(run(folder, "--inspect 1 --seed 3 --config " + packed).exit_code == 2);
  CHECK(run(folder, "--config " + packed + " --input x --output y").exit_code == 2);
  const std::string missing = write_run(folder, R"("train": "elsewhere")");
  CHECK(run(folder, "--inspect 1 --config " + missing).exit_code == 2);
}

TEST_CASE("prepare-data --inspect --config prints the prompts of a run of rewards",
          "[data][command]") {
  if (testing::no_dstrain_here()) return;
  const ScratchFolder folder;
  write_file(folder / "asked.jsonl",
             "{\"prompt\": \"a\\nb\", \"answer\": 1}\n"
             "{\"prompt\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n");
  write_file(folder / "chat.jinja",
             "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
             "{% if add_generation_prompt %}<me>{% endif %}");
  const auto with = [&](const std::string& data, const std::string& policy) {
    write_file(folder / "run.json", R"({
      "train_batch_size": 8, "optimizer": {"type": "AdamW"}, )" +
                                        policy + R"(,
      "model": {"model_type": "llama", "vocab_size": 256, "hidden_size": 64,
                "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 2, "max_position_embeddings": 128},
      "data": {"train": ")" + (folder / "asked.jsonl") +
                                        R"(", "tokenizer": "bytes", "sequence_length": 40)" + data +
                                        R"(},
      "training": {"steps": 10, "output_dir": "run"}})");
    return folder / "run.json";
  };
  const std::string policy =
      R"("ppo": {"reward_command": "cat", "response_length": 8, "kl_coef": 0})";
  const std::string template_of = R"(, "chat_template": ")" + (folder / "chat.jinja") + R"(")";
  const Ended text = run(folder, "--inspect 5 --config " + with(template_of, policy));
  INFO(text.standard_error);
  REQUIRE(text.exit_code == 0);
  CHECK_THAT(text.standard_output, Contains("2 prompts; a prompt has up to 32 tokens") &&
                                       Contains("asked.jsonl:1, 3 tokens\n  a\\nb\n") &&
                                       Contains("asked.jsonl:2, 13 tokens\n  <user>hi;<me>\n"));
  const Ended json = run(folder, "--inspect 5 --json --config " + with(template_of, policy));
  REQUIRE(json.exit_code == 0);
  const auto told = nlohmann::json::parse(json.standard_output).at("prompts");
  REQUIRE(told.size() == 2);
  const auto& first = told[told[0].at("where").get<std::string>().ends_with(":1") ? 0 : 1];
  CHECK(first.at("ids") == nlohmann::json{97, 10, 98});
  CHECK(first.at("text") == "a\nb");
  const Ended refused = run(folder, "--inspect 5 --config " + with("", policy));
  CHECK(refused.exit_code == 2);
  CHECK_THAT(refused.standard_error, Contains("asked.jsonl:2: data.chat_template: missing"));
}

}  // namespace
}  // namespace dstrain
