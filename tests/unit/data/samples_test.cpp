// Samples of fine-tuning data, from JSON lines to the targets of a micro-batch.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/config/config_error.h"
#include "engine/data/batch_loader.h"
#include "engine/data/document_index.h"
#include "engine/data/documents.h"
#include "engine/data/megatron_writer.h"
#include "engine/data/prepare_data.h"
#include "kernels/ignored_target.h"
#include "tests/unit/data/scratch_folder.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using test::ScratchFolder;
using test::write_file;

constexpr const char* kTemplate =
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}";

std::string chat(const std::string& question, const std::string& answer) {
  return R"({"messages": [{"role": "user", "content": ")" + question +
         R"("}, {"role": "assistant", "content": ")" + answer + "\"}]}\n";
}

PrepareOptions options_for(const ScratchFolder& folder) {
  write_file(folder / "chat.jinja", kTemplate);
  PrepareOptions options;
  options.input = {folder / "chats.jsonl"};
  options.output = folder / "out";
  options.validation = 0.0;
  options.chat = true;
  options.chat_template = folder / "chat.jinja";
  options.stop_tokens = {";"};
  options.threads = 1;
  return options;
}

PrepareSummary prepare(const PrepareOptions& options) {
  return prepare_data(options, {.on_progress = [](const PrepareProgress&) {},
                                .stop_requested = [] { return false; }})
      .value();
}

DataConfig data_of(const ScratchFolder& folder, std::int64_t sequence) {
  return {.train = {{.prefix = folder / "out/train"}},
          .sequence_length = sequence,
          .document_attention = true,
          .pack = DocumentPack::kBestFit,
          .samples = true};
}

struct Row {
  std::string inputs;
  std::string targets;  ///< '.' where one is ignored
  std::vector<std::int32_t> positions;
};

/// The rows that a model would be given, in the order of their texts.
std::vector<Row> rows_of(const DataConfig& data) {
  const BatchLoader loader(data, data.train, 256, 1);
  const auto T = static_cast<std::size_t>(data.sequence_length);
  std::vector<Row> rows;
  for (std::int64_t i = 0; i < loader.sequences_per_epoch(); ++i) {
    std::vector<std::int32_t> inputs(T);
    std::vector<std::int32_t> targets(T);
    std::vector<std::int32_t> positions(T);
    loader.load(i, inputs, targets);
    take_document_ends(targets, data.sequence_length, positions);
    Row row{.inputs = "", .targets = "", .positions = positions};
    for (std::size_t t = 0; t < T; ++t) {
      row.inputs += inputs[t] == 0 ? '_' : static_cast<char>(inputs[t]);
      row.targets += targets[t] == kIgnoredTarget ? '.' : static_cast<char>(targets[t]);
    }
    rows.push_back(std::move(row));
  }
  std::sort(rows.begin(), rows.end(),
            [](const Row& a, const Row& b) { return a.inputs < b.inputs; });
  return rows;
}

TEST_CASE("answers are the targets, and samples do not touch each other", "[data]") {
  const ScratchFolder folder;
  write_file(folder / "chats.jsonl", chat("q", "yes") + chat("what", "no"));
  const PrepareSummary summary = prepare(options_for(folder));
  CHECK(summary.samples.kind == "conversations");
  CHECK(summary.samples.lines == 2);
  CHECK(summary.samples.trained_tokens == 7);
  const std::vector<Row> rows = rows_of(data_of(folder, 32));
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].inputs == "<u>what;<a>no;<u>q;<a>yes;______");
  CHECK(rows[0].targets == "..........no;........yes;.......");
  std::vector<std::int32_t> expected(32);
  std::iota(expected.begin(), expected.begin() + 14, 0);
  std::iota(expected.begin() + 14, expected.begin() + 26, 0);
  std::iota(expected.begin() + 26, expected.end(), 0);
  CHECK(rows[0].positions == expected);
}

TEST_CASE("without packing every sample has a sequence", "[data]") {
  const ScratchFolder folder;
  write_file(folder / "chats.jsonl", chat("q", "yes") + chat("what", "no"));
  prepare(options_for(folder));
  DataConfig data = data_of(folder, 16);
  data.pack = DocumentPack::kNone;
  const std::vector<Row> rows = rows_of(data);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].inputs == "<u>q;<a>yes;____");
  CHECK(rows[0].targets == ".......yes;.....");
  CHECK(rows[1].inputs == "<u>what;<a>no;__");
  CHECK(rows[1].targets == "..........no;...");
}

TEST_CASE("a sample longer than a sequence is cut or left out, and what is lost is said",
          "[data]") {
  const ScratchFolder folder;
  write_file(folder / "chats.jsonl",
             chat("q", "yes") + chat("what", "a long answer") + chat("a long question", "no"));
  prepare(options_for(folder));
  DataConfig data = data_of(folder, 16);
  const std::vector<Row> cut = rows_of(data);
  REQUIRE(cut.size() == 3);
  CHECK(cut[0].inputs == "<u>a long questi");
  CHECK(cut[0].targets == "................");
  CHECK(cut[2].inputs == "<u>what;<a>a lon");
  CHECK(cut[2].targets == "..........a lon.");
  const auto report = [&] { return BatchLoader(data, data.train, 256, 1).reports().front(); };
  CHECK_THAT(report(), Contains("2 samples longer than a sequence and cut, with 12 trained tokens, "
                                "1 of which have none left"));
  data.long_samples = LongSamples::kDrop;
  const std::vector<Row> dropped = rows_of(data);
  REQUIRE(dropped.size() == 1);
  CHECK(dropped[0].inputs == "<u>q;<a>yes;____");
  CHECK_THAT(report(), Contains("2 samples longer than a sequence and left out, with 17 trained"));
}

TEST_CASE("the file says which tokens are trained, and of which part of a pair", "[data]") {
  const ScratchFolder folder;
  write_file(
      folder / "chats.jsonl",
      R"({"prompt": [{"role": "user", "content": "q"}], "chosen": [{"role": "assistant", "content": "good"}], "rejected": [{"role": "assistant", "content": "bad"}]})");
  CHECK(prepare(options_for(folder)).samples.kind == "pairs");
  const auto index = DocumentIndex::open(folder / "out/train");
  REQUIRE(index->has_modes());
  REQUIRE(index->num_documents() == 2);
  const auto chosen = index->parts(0);
  REQUIRE(chosen.size() == 2);
  CHECK(chosen[0].mode == (kChosenMode | kContextMode));
  CHECK(chosen[0].size == 8);
  CHECK(chosen[1].mode == kChosenMode);
  CHECK(chosen[1].size == 5);
  CHECK(index->parts(1)[1].mode == kRejectedMode);
  CHECK(index->parts(1)[1].begin == 13 + 8);
}

TEST_CASE("a prompt with the answer to another", "[data]") {
  const ScratchFolder folder;
  write_file(
      folder / "chats.jsonl",
      R"({"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "good"}], "label": true}
{"prompt": [{"role": "user", "content": "why"}], "completion": [{"role": "assistant", "content": "bad"}], "label": false}
)");
  CHECK(prepare(options_for(folder)).samples.kind == "rated answers");
  DataConfig data = data_of(folder, 20);
  data.sample_kind = SampleKind::kRated;
  data.pack = DocumentPack::kNone;
  const BatchLoader loader(data, data.train, 256, 1);
  const Sequences& sequences = loader.sequences(0);
  const auto mismatched = [&](std::int64_t document) {
    std::vector<std::int32_t> inputs(20);
    std::vector<std::int32_t> targets(20);
    sequences.read_mismatched(document, inputs, targets);
    std::string text;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      text += inputs[i] == 0 ? '_' : static_cast<char>(inputs[i]);
      if (targets[i] >= 0) CHECK(targets[i] == inputs[i + 1]);
    }
    return std::pair(text, std::count_if(targets.begin(), targets.end(),
                                         [](std::int32_t target) { return target >= 0; }));
  };
  CHECK(mismatched(0) == std::pair(std::string("<u>q;<a>bad;________"), std::ptrdiff_t{4}));
  CHECK(mismatched(1) == std::pair(std::string("<u>why;<a>good;_____"), std::ptrdiff_t{5}));
  std::set<bool> liked;
  for (std::int64_t index = 0; index < sequences.count(); ++index) {
    REQUIRE(sequences.samples(index).size() == 1);
    const PlacedSample sample = sequences.samples(index).front();
    liked.insert(sample.is_liked);
    CHECK(sample.num_answer_tokens() == (sample.is_liked ? 5 : 4));
    CHECK(sample.answers.front().end == sample.size - 1);
  }
  CHECK(liked.size() == 2);
}

TEST_CASE("data that would train a model wrongly are refused", "[data]") {
  const ScratchFolder folder;
  const auto refusal = [&](const PrepareOptions& options) -> std::string {
    try {
      prepare(options);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "prepared";
  };
  PrepareOptions options = options_for(folder);
  write_file(folder / "chats.jsonl", chat("q", "yes") +
                                         "{\"messages\": [{\"role\": \"user\", "
                                         "\"content\": \"q\"}]}\n");
  CHECK_THAT(refusal(options), Contains("chats.jsonl:2: has no answer of the assistant"));
  write_file(folder / "chats.jsonl",
             chat("q", "yes") + "{\"chosen\": \"ab\", \"rejected\": \"ac\"}\n");
  CHECK_THAT(refusal(options), Contains("chats.jsonl:2: is of pairs, and what came before it of "
                                        "conversations"));
  write_file(folder / "chats.jsonl", chat("q", "yes"));
  options.stop_tokens = {"#"};
  CHECK_THAT(refusal(options), Contains("none of the 1 answer has a token that ends it"));
  options.stop_tokens = {"##"};
  CHECK_THAT(refusal(options), Contains("--stop-token ##: the tokenizer makes 2 tokens of it"));
  options.stop_tokens = {};
  CHECK_THAT(refusal(options), Contains("says which token ends an answer"));
  options.chat = false;
  options.chat_template.clear();
  options.samples.train_on = TrainOn::kAll;
  CHECK_THAT(refusal(options), Contains("expected --chat with them"));
}

TEST_CASE("plain token files are no samples", "[data]") {
  const ScratchFolder folder;
  {
    MegatronWriter writer(folder / "train", TokenType::kU8);
    writer.append(std::vector<std::int32_t>(40, 1));
    writer.end_document();
    writer.finish();
    writer.publish();
  }
  DataConfig data = data_of(folder, 16);
  data.train.front().prefix = folder / "train";
  CHECK_THROWS_WITH(BatchLoader(data, data.train, 256, 1),
                    Contains("nothing says which of its tokens are trained"));
}

}  // namespace
}  // namespace dstrain
