// Where the tokenizer of a checkpoint is found, and what is said where it is not.
#include "engine/generate/find_tokenizer.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/checkpoint/foreign/huggingface/tokenizer_files.h"
#include "engine/config/config_error.h"
#include "engine/data/prepare_data.h"
#include "engine/data/sentencepiece_training.h"
#include "tests/unit/data/scratch_folder.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using test::ScratchFolder;
using test::write_file;

std::string small_model(const ScratchFolder& folder) {
  std::string text;
  for (int line = 0; line < 3000; ++line) {
    text += "some words " + std::to_string(line * 7919 % 1000) + " for a vocabulary\n";
  }
  write_file(folder / "text", text);
  const InputFile file{.path = folder / "text", .bytes = static_cast<std::int64_t>(text.size())};
  return train_sentencepiece({&file}, {.vocab_size = 300, .seed = 1}, [] { return false; });
}

TEST_CASE("facts of a run are read from the config that its checkpoint carries",
          "[generate][tokenizer]") {
  const RunFacts facts = read_run_facts(
      R"({"bf16": {"enabled": true}, "fp16": {"enabled": false},
          "model": {"initial_weights": "models/start"},
          "data": {"train": [{"path": "a/train", "weight": 1.0}, {"path": "b/c/train"}]}})");
  CHECK(facts.compute == DType::kBF16);
  CHECK(facts.data_folders == std::vector<std::filesystem::path>{"a", "b/c"});
  CHECK(facts.initial_weights == "models/start");
  CHECK(read_run_facts(R"({"fp16": {"enabled": true}, "bf16": {"enabled": false}})").compute ==
        DType::kF16);
  CHECK(read_run_facts(R"({"bf16": {"enabled": false}})").compute == DType::kF32);
  CHECK(read_run_facts(R"({"data": {"train": "x/train"}})").data_folders.size() == 1);
  for (const char* text : {"", "[]", "{", R"({"model": 1, "data": [], "bf16": true})"}) {
    CHECK_FALSE(read_run_facts(text).compute);
    CHECK(read_run_facts(text).data_folders.empty());
  }
}

TEST_CASE("prepare-data's description names the tokenizer", "[generate][tokenizer]") {
  const ScratchFolder folder;
  write_file(folder / "in/a", "some text\n");
  const auto prepare = [&](const std::string& output, std::optional<std::int32_t> end) {
    REQUIRE(prepare_data(
        {.input = {folder / "in"}, .output = output, .append_eod = end, .validation = 0.0}, {}));
  };
  prepare(folder / "plain", {});
  const FoundTokenizer plain =
      find_tokenizer("", folder.path(), {.data_folders = {folder / "plain"}});
  CHECK(plain.name == "bytes");
  CHECK_FALSE(plain.beginning);
  CHECK(plain.ends.empty());
  prepare(folder / "ended", 256);
  const FoundTokenizer ended =
      find_tokenizer("", folder.path(), {.data_folders = {folder / "ended"}});
  CHECK(ended.ends == std::vector<std::int32_t>{256});
  CHECK(ended.beginning == 256);  // documents follow one another
  CHECK_FALSE(ended.always_begins);
}

TEST_CASE("a model beside the weights comes first, with what Hugging Face says of it",
          "[generate][tokenizer]") {
  const ScratchFolder folder;
  write_file(folder / "hf/tokenizer.model", small_model(folder));
  write_file(folder / "data/dataset.json", R"({"tokenizer": "bytes"})");
  const RunFacts run{.data_folders = {folder / "data"}};
  const FoundTokenizer bare = find_tokenizer("", folder / "hf", run);
  CHECK(bare.name == "sentencepiece:" + (folder / "hf/tokenizer.model"));
  CHECK(bare.beginning == 1);
  CHECK(bare.always_begins);
  CHECK(bare.ends == std::vector<std::int32_t>{2});
  write_file(folder / "hf/config.json", R"({"eos_token_id": 7})");
  write_file(folder / "hf/tokenizer_config.json", R"({"add_bos_token": false})");
  const FoundTokenizer told = find_tokenizer("", folder / "hf", run);
  CHECK_FALSE(told.always_begins);
  CHECK(told.ends == std::vector<std::int32_t>{2, 7});
  write_file(folder / "hf/generation_config.json", R"({"eos_token_id": [8, 9]})");
  CHECK(find_tokenizer("", folder / "hf", run).ends == std::vector<std::int32_t>{2, 8, 9});
  // Where the run started from is asked last.
  CHECK(find_tokenizer("", folder / "x", {.initial_weights = folder / "hf"}).name == bare.name);
  CHECK(find_tokenizer("", folder / "x",
                       {.data_folders = {folder / "data"}, .initial_weights = folder / "hf"})
            .name == "bytes");
  // The user's choice comes first.
  CHECK(find_tokenizer("bytes", folder / "hf", run).name == "bytes");
  CHECK(find_tokenizer(folder / "hf/tokenizer.model", folder / "x", {}).name == bare.name);
}

TEST_CASE("a model of bytes is known again after its conversion", "[generate][tokenizer]") {
  const ScratchFolder folder;
  write_file(folder / "hf/tokenizer.json", byte_tokenizer());
  CHECK(find_tokenizer("", folder / "hf", {}).name == "bytes");
  write_file(folder / "hf/tokenizer.json", R"({"model": {"type": "BPE"}})");
  CHECK_THROWS_AS(find_tokenizer("", folder / "hf", {}), ConfigError);
}

TEST_CASE("data that moved takes its SentencePiece model along", "[generate][tokenizer]") {
  const ScratchFolder folder;
  write_file(folder / "moved/tokenizer.model", small_model(folder));
  write_file(folder / "moved/dataset.json",
             R"({"tokenizer": "sentencepiece:/gone/tokenizer.model"})");
  CHECK(find_tokenizer("", folder.path(), {.data_folders = {folder / "moved"}}).name ==
        "sentencepiece:" + (folder / "moved/tokenizer.model"));
}

TEST_CASE("what a checkpoint records of its tokenizer comes before all that lies elsewhere",
          "[generate][tokenizer]") {
  const ScratchFolder folder;
  const std::string model = small_model(folder);
  const TokenizerIdentity record{.kind = "sentencepiece",
                                 .hash = content_hash(model),
                                 .vocab_size = 300,
                                 .file = "tokenizer.model",
                                 .document_end = 2};
  write_file(folder / "step/tokenizer.model", model);
  write_file(folder / "data/dataset.json", R"({"tokenizer": "bytes"})");
  RunFacts run{.data_folders = {folder / "data"}, .initial_weights = {}, .tokenizer = record};
  const FoundTokenizer found = find_tokenizer("", folder / "step", run);
  CHECK(found.name == "sentencepiece:" + (folder / "step/tokenizer.model"));
  CHECK(found.ends.back() == 2);
  CHECK_FALSE(found.always_begins);

  // Not every file of that name is taken.
  write_file(folder / "step/tokenizer.model", model + "\n");
  CHECK_THROWS_WITH(
      find_tokenizer("", folder / "step", run),
      Contains(folder / "step/tokenizer.model") && Contains("is not the tokenizer that"));
  // Where it is gone, the data may still know.
  std::filesystem::remove(folder / "step/tokenizer.model");
  CHECK(find_tokenizer("", folder / "step", run).name == "bytes");

  run.data_folders.clear();
  run.tokenizer =
      TokenizerIdentity{.kind = "bytes", .hash = "", .vocab_size = 257, .document_end = 256};
  const FoundTokenizer bytes = find_tokenizer("", folder / "step", run);
  CHECK(bytes.name == "bytes");
  CHECK(bytes.ends == std::vector<std::int32_t>{256});
  CHECK(bytes.beginning == 256);
}

TEST_CASE("where no tokenizer is named, it says where it looked", "[generate][tokenizer]") {
  const ScratchFolder folder;
  CHECK_THROWS_AS(find_tokenizer("", folder.path(), {}), ConfigError);
  CHECK_THROWS_WITH(find_tokenizer("", folder.path(), {.data_folders = {"data/mine"}}),
                    Contains(folder / "tokenizer.json") && Contains("data/mine/dataset.json") &&
                        Contains("--tokenizer bytes"));
  write_file(folder / "tokenizer.json", "{}");
  CHECK_THROWS_WITH(find_tokenizer("", folder.path(), {}),
                    Contains(folder / "tokenizer.json") && Contains("has no \"model\""));
  CHECK_THROWS_WITH(find_tokenizer(folder / "none", folder.path(), {}),
                    Contains(folder / "none") && Contains("an existing file or model folder"));
}

}  // namespace
}  // namespace dstrain
