// What a run logs at its start: what has changed since its checkpoint, whether data, weights and
// tokenizer belong together, and that there is nothing left to do.
#include <fstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/foreign/huggingface/tokenizer_files.h"
#include "engine/checkpoint/manifest.h"
#include "engine/config/config_error.h"
#include "engine/train/resume.h"
#include "engine/train/resume_changes.h"
#include "tests/harness/captured_log.h"
#include "tests/harness/resumable_run.h"

namespace dstrain::test {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

void write(const fs::path& path, const std::string& content) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

std::string content_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// "key: then → now" of each change.
std::vector<std::string> changes(const LoadedConfig& then, const LoadedConfig& now) {
  TrainingState state;
  state.config = to_json(then);
  std::vector<std::string> rows;
  const auto found = changes_since(state, now);
  REQUIRE(found);
  for (const ChangedSetting& change : *found) {
    rows.push_back(fmt::format("{}: {} → {}", change.key, change.then, change.now));
  }
  return rows;
}

/// Token files by the name of `prefix` that `description` speaks of.
void describe_data(const fs::path& prefix, const json& description) {
  fs::create_directories(prefix.parent_path());
  write(prefix.parent_path() / "dataset.json", description.dump());
}

json bytes_description(const std::string& content = "00") {
  return {{"tokenizer", "bytes"},
          {"tokenizer_identity", {{"kind", "bytes"}, {"vocab_size", 67}}},
          {"train", {{"content", content}}}};
}

json model_description(const std::string& hash, int size = 67) {
  return {{"tokenizer", "sentencepiece:gone"},
          {"tokenizer_identity",
           {{"kind", "sentencepiece"},
            {"xxh128", hash},
            {"vocab_size", size},
            {"file", "tokenizer.model"}}}};
}

using Rows = std::vector<std::string>;

TEST_CASE("what has changed since a checkpoint is one row each", "[train][start]") {
  const RunFolder folder;
  const LoadedConfig then = config_of(folder, "a", 8, 2);
  CHECK(changes(then, then).empty());
  // Where, when and how fast is not what.
  CHECK(changes(then, config_of(folder, "b", 8, 2,
                                {{"training", {{"threads", 3}, {"eval_batches", 1}}},
                                 {"steps_per_print", 7},
                                 {"checkpoint", {{"interval", 1}}}}))
            .empty());
  CHECK(
      changes(then, config_of(folder, "b", 8, 2, {{"optimizer", {{"params", {{"lr", 1e-4}}}}}})) ==
      Rows{"optimizer.params.lr: 0.003 → 0.0001"});
  CHECK(changes(then, config_of(folder, "b", 8, 4)) ==
        Rows{"ranks: 2 → 4", "train_micro_batch_size_per_gpu: 2 → 1"});
  CHECK(changes(then, config_of(folder, "b", 9, 2,
                                {{"data", {{"sequence_length", 20}}},
                                 {"training", {{"seed", 5}}},
                                 {"model", {{"rope_theta", 5000}}},
                                 {"zero_optimization", {{"stage", 1}}}})) ==
        Rows{"zero_optimization.stage: 0 → 1", "model.rope_theta: 10000 → 5000",
             "data.sequence_length: 19 → 20", "training.steps: 8 → 9", "training.seed: 1234 → 5"});
  // Another kind is one row, not one for each parameter of both.
  CHECK(changes(then, config_of(folder, "b", 8, 2, {{"scheduler", nullptr}})) ==
        Rows{"scheduler.type: WarmupCosineLR → none"});
  CHECK(changes(then, config_of(folder, "b", 8, 2,
                                {{"optimizer", {{"type", "Lion"}, {"params", {{"lr", 1e-4}}}}}})) ==
        Rows{"optimizer.type: AdamW → Lion", "optimizer.params.lr: 0.003 → 0.0001"});
  CHECK(changes(then, config_of(folder, "b", 8, 2, {{"tensor_parallel", {{"size", 2}}}})) ==
        Rows{"train_micro_batch_size_per_gpu: 2 → 4", "tensor_parallel.size: 1 → 2"});
}

TEST_CASE("a checkpoint that does not say how its run was set, says so", "[train][start]") {
  const RunFolder folder;
  const LoadedConfig now = config_of(folder, "a", 8, 1);
  for (const char* config : {"", "{}", R"({"model": {"model_type": "llama"}})", "[]"}) {
    TrainingState state;
    state.config = config;
    CHECK_FALSE(changes_since(state, now));
    CHECK(describe_changes("resumed", state, now) ==
          Rows{"resumed; the settings of the run that saved it are not known"});
  }
  // A key that an older version did not have is no change while it has its default.
  TrainingState older;
  json config = json::parse(to_json(now));
  config.erase("fp8");
  older.config = config.dump();
  CHECK(describe_changes("resumed", older, now) ==
        Rows{"resumed; nothing differs from the run that saved it"});
  const LoadedConfig given = config_of(folder, "b", 8, 1, {{"fp8", {{"enabled", false}}}});
  CHECK(changes_since(older, given).value().size() == 1);
}

TEST_CASE("data that changed under their name are told from data that moved", "[train][start]") {
  const RunFolder folder;
  const auto config = [&](const std::string& data) {
    return config_of(folder, "a", 8, 1,
                     {{"data", {{"train", (folder.path() / data / "train").string()}}}});
  };
  describe_data(folder.path() / "one/train", bytes_description("aa"));
  TrainingState state;
  state.config = to_json(config("one"));
  state.data = data_contents(config("one").config.data);
  state.tokenizer = TokenizerIdentity{.kind = "bytes", .hash = "", .vocab_size = 67};
  CHECK(changes_since(state, config("one"))->empty());

  describe_data(folder.path() / "two/train", bytes_description("aa"));
  const auto moved = changes_since(state, config("two"));
  REQUIRE(moved->size() == 1);
  CHECK(moved->front().key == "data.train");
  CHECK_THAT(moved->front().now, Contains("two/train (the same tokens)"));

  describe_data(folder.path() / "one/train", bytes_description("bb"));
  const auto replaced = changes_since(state, config("one"));
  REQUIRE(replaced->size() == 1);
  CHECK_THAT(replaced->front().key, Contains("one/train"));
  CHECK_THAT(replaced->front().now, Contains("other tokens"));

  describe_data(folder.path() / "one/train", model_description("0123456789"));
  CHECK(changes_since(state, config("one"))->back().key == "tokenizer");
}

TEST_CASE("data, weights and model of different tokenizers are refused", "[train][start]") {
  const RunFolder folder;
  const fs::path train = folder.path() / "t/train";
  const fs::path validation = folder.path() / "v/validation";
  const auto config = [&](const json& more = json::object()) {
    json changed = {{"data", {{"train", train.string()}, {"validation", validation.string()}}}};
    changed.merge_patch(more);
    return config_of(folder, "a", 8, 1, changed).config;
  };
  const auto conflict = [&](const ResumedFrom* from, const json& more = json::object()) {
    return tokenizer_conflict(config(more), from).value_or("none");
  };
  SECTION("data that say nothing contradict nothing") {
    describe_data(train, bytes_description());
    CHECK(conflict(nullptr) == "none");
    describe_data(validation, {{"tokenizer", "sentencepiece:gone"}});
    CHECK(conflict(nullptr) == "none");
  }
  SECTION("training and validation") {
    describe_data(train, bytes_description());
    describe_data(validation, bytes_description());
    CHECK(conflict(nullptr) == "none");
    describe_data(validation, model_description("aabbccddeeff"));
    CHECK_THAT(conflict(nullptr), Contains("data.validation: the ids of " + validation.string()) &&
                                      Contains("hash aabbccdd") && Contains("bytes (67 ids)") &&
                                      Contains((folder.path() / "t/dataset.json").string()) &&
                                      Contains("--allow-tokenizer-mismatch"));
  }
  SECTION("the model's vocabulary") {
    describe_data(train, model_description("aa", 68));
    CHECK_THAT(conflict(nullptr), Contains("model.vocab_size: 67 is too small") &&
                                      Contains("68 ids") && Contains("set it to 68 or more"));
  }
  SECTION("the checkpoint") {
    describe_data(train, bytes_description());
    ResumedFrom from{.path = folder.path() / "step", .training = {}};
    CHECK(conflict(&from) == "none");
    from.training.tokenizer = TokenizerIdentity{.kind = "bytes", .hash = ""};
    CHECK(conflict(&from) == "none");
    from.training.tokenizer = TokenizerIdentity{.kind = "sentencepiece", .hash = "abcdef0123"};
    CHECK_THAT(conflict(&from), Contains((folder.path() / "step").string()) &&
                                    Contains("was trained on ids of sentencepiece"));
    // An imported one says it by its files.
    from.training.tokenizer.reset();
    write(from.path / "tokenizer.model", "a model");
    CHECK_THAT(conflict(&from), Contains("sentencepiece tokenizer.model"));
    describe_data(train, model_description(content_hash("a model")));
    CHECK(conflict(&from) == "none");
  }
  SECTION("the start weights") {
    const fs::path start = folder.path() / "start";
    fs::create_directories(start);
    fs::copy("tests/golden/llama-tiny/config.json", start / "config.json");
    fs::copy("tests/golden/llama-tiny/model.safetensors", start / "model.safetensors");
    const json from_start = {{"model", {{"initial_weights", start.string()}}}};
    describe_data(train, bytes_description());
    CHECK(conflict(nullptr, from_start) == "none");
    write(start / "tokenizer.json", byte_tokenizer());
    CHECK(conflict(nullptr, from_start) == "none");
    write(start / "tokenizer.json", R"({"model": {"type": "BPE"}})");
    CHECK_THAT(conflict(nullptr, from_start),
               Contains("model.initial_weights") && Contains("huggingface tokenizer.json"));
    write(start / "tokenizer.model", "a model");
    describe_data(train, model_description(content_hash("another")));
    CHECK_THAT(conflict(nullptr, from_start),
               Contains("--tokenizer " + (start / "tokenizer.model").string()));
    describe_data(train, model_description(content_hash("a model")));
    CHECK(conflict(nullptr, from_start) == "none");
    // A tokenizer.json alone may be the same tokenizer as a SentencePiece model.
    fs::remove(start / "tokenizer.model");
    CHECK(conflict(nullptr, from_start) == "none");
    // Resuming ignores the start.
    write(start / "tokenizer.model", "yet another");
    const ResumedFrom from{.path = folder.path() / "step", .training = {}};
    CHECK(conflict(&from, from_start) == "none");
  }
}

/// RunFolder's token files as if prepare-data had made them of `description`'s tokenizer.
void take_description(const RunFolder& folder, const json& description) {
  write(folder.path() / "dataset.json", description.dump());
}

TEST_CASE("checkpoints take the tokenizer along, and refuse data of another one",
          "[train][start]") {
  const RunFolder folder;
  const fs::path newest = folder.path() / "run/checkpoints/step-00000004";
  write(folder.path() / "tokenizer.model", "a model");
  take_description(folder, model_description(content_hash("a model")));
  run(config_of(folder, "run", 4, 2), 2);
  CHECK(content_of(newest / "tokenizer.model") == "a model");
  CHECK(fs::exists(newest / "tokenizer_config.json"));
  const TrainingState saved = read_manifest(newest).training;
  REQUIRE(saved.tokenizer);
  CHECK(saved.tokenizer->hash == content_hash("a model"));

  take_description(folder, bytes_description());
  CHECK_THROWS_WITH(run(config_of(folder, "run", 6, 2), 2),
                    Contains("was trained on ids of sentencepiece"));
  // Data that no longer say anything are taken for the same.
  fs::remove(folder.path() / "dataset.json");
  fs::remove(folder.path() / "tokenizer.model");
  {
    const testing::CapturedLog log;
    run(config_of(folder, "run", 6, 1), 1);
    CHECK_THAT(log.text(), Contains("resumed at step 4 from") && Contains("what differs") &&
                               Contains("ranks") && Contains("2 → 1"));
  }
  const fs::path after = folder.path() / "run/checkpoints/step-00000006";
  CHECK(read_manifest(after).training.tokenizer == saved.tokenizer);
  CHECK(content_of(after / "tokenizer.model") == "a model");
}

TEST_CASE("a run whose steps are done does nothing, and writes nothing", "[train][start]") {
  const RunFolder folder;
  run(config_of(folder, "run", 4, 2), 2);
  const auto times = [&] {
    std::map<std::string, fs::file_time_type> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder.path() / "run")) {
      found[entry.path()] = entry.last_write_time();
    }
    return found;
  };
  const auto before = times();
  for (const int steps : {4, 3}) {
    const testing::CapturedLog log;
    const TrainResult result = run(config_of(folder, "run", steps, 1), 1);
    CHECK(result.step == 4);
    CHECK(result.stopped_by == 0);
    CHECK_THAT(log.text(), Contains("nothing to do") && Contains("step-00000004 has 4") &&
                               Contains("--set training.steps=8"));
  }
  CHECK(times() == before);
}

}  // namespace
}  // namespace dstrain::test
