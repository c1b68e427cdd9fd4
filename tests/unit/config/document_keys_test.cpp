// The keys of "data" about documents: dstrain's keys, Megatron's names for them, and which token
// ends one.
#include <fmt/format.h>

#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

/// A description of token files, as prepare-data writes it, and the overrides that use them.
std::vector<std::string> described(const TemporaryFolder& folder, const std::string& json) {
  folder.write("data/dataset.json", json);
  return {"data.train=\"" + folder.path() + "/data/train\"", "data.validation=null",
          "data.document_attention=true"};
}

}  // namespace

TEST_CASE("documents are told apart only where the config asks for it", "[spec][documents]") {
  const DataConfig plain = load_tiny({}).config.data;
  CHECK(!plain.document_attention);
  CHECK(!plain.mask_document_ends);
  const DataConfig data = load_tiny({"data.document_attention=true", "data.mask_document_ends=true",
                                     "data.end_of_document=2"})
                              .config.data;
  CHECK(data.document_attention);
  CHECK(data.mask_document_ends);
  CHECK(data.end_of_document == 2);
}

TEST_CASE("Megatron's names mean the same", "[spec][documents]") {
  const DataConfig data =
      load_tiny({"data.reset_attention_mask=true", "data.reset_position_ids=true",
                 "data.eod_mask_loss=true", "data.end_of_document=2"})
          .config.data;
  CHECK(data.document_attention);
  CHECK(data.mask_document_ends);
}

TEST_CASE("the token that ends a document is the one that prepare-data appended",
          "[spec][documents]") {
  const TemporaryFolder folder;
  LoadedConfig loaded =
      load_tiny(described(folder, R"({"tokenizer": "bytes", "vocab_size": 256, "append_eod": 7})"));
  resolve_config(loaded, 1);
  CHECK(loaded.config.data.end_of_document == 7);
  CHECK_THAT(origin_of(loaded, "data.end_of_document"), Contains("dataset.json"));
}

TEST_CASE("a run that asks for no borders does not look for them", "[spec][documents]") {
  const TemporaryFolder folder;
  std::vector<std::string> overrides =
      described(folder, R"({"tokenizer": "bytes", "vocab_size": 256, "append_eod": 7})");
  overrides.back() = "data.document_attention=false";
  LoadedConfig loaded = load_tiny(overrides);
  resolve_config(loaded, 1);
  CHECK(!loaded.config.data.end_of_document);
}

TEST_CASE("an end that is no token of the model is refused", "[spec][documents]") {
  LoadedConfig loaded = load_tiny({"data.document_attention=true", "data.end_of_document=256"});
  CHECK_THAT(config_error_of([&] { resolve_config(loaded, 1); }),
             Contains("data.end_of_document: token 256 is outside the model's vocabulary of 256"));
  CHECK_THAT(error_of_tiny({"data.end_of_document=-1"}), Contains("data.end_of_document"));
}

TEST_CASE("kernels that know neither documents nor windows are refused, not left out",
          "[spec][documents]") {
  const auto error_of = [](const std::vector<std::string>& overrides) {
    return config_error_of([&] {
      LoadedConfig loaded = load_tiny(overrides);
      resolve_config(loaded, 1);
    });
  };
  const std::string cudnn = "training.attention=\"cudnn\"";
  CHECK_THAT(error_of({cudnn, "data.document_attention=true", "data.end_of_document=2"}),
             Contains("training.attention") && Contains("data.document_attention does too"));
  CHECK_THAT(error_of({cudnn, "model.model_type=\"mistral\"", "model.sliding_window=16"}),
             Contains("the model's window does too"));
  CHECK(error_of({cudnn, "model.model_type=\"mistral\"", "model.sliding_window=128"}).empty());
  CHECK_THAT(error_of({cudnn, "model.model_type=gemma2", "model.sliding_window=null"}),
             Contains("no cap of scores"));
  CHECK_THAT(error_of({cudnn, R"(model={"model_type": "bloom", "vocab_size": 256,
                                        "hidden_size": 64, "n_layer": 2, "n_head": 4})"}),
             Contains("no scores that fall with distance"));
  CHECK(error_of({cudnn}).empty());
  CHECK(error_of({"data.document_attention=true", "data.end_of_document=2"}).empty());
}

TEST_CASE("documents are packed, and shared out by tokens, where the config asks for it",
          "[spec][documents]") {
  const DataConfig plain = load_tiny({}).config.data;
  CHECK(plain.pack == DocumentPack::kNone);
  CHECK(plain.weights_by == WeightUnit::kSamples);
  const DataConfig data =
      load_tiny({"data.pack=\"best_fit\"", "data.weights_by=\"tokens\""}).config.data;
  CHECK(data.pack == DocumentPack::kBestFit);
  CHECK(data.weights_by == WeightUnit::kTokens);
  CHECK_THAT(error_of_tiny({"data.pack=\"best-fit\""}), Contains("did you mean \"best_fit\""));

  LoadedConfig longest = load_tiny({"data.pack=\"best_fit\"", "data.sequence_length=20000000",
                                    "model.max_position_embeddings=20000000"});
  CHECK_THAT(config_error_of([&] { resolve_config(longest, 1); }),
             Contains("data.sequence_length: 20000000, of which data.pack fills up to 16777216"));
}

TEST_CASE("sources that end documents differently are refused", "[spec][documents]") {
  const TemporaryFolder folder;
  std::vector<std::string> overrides =
      described(folder, R"({"tokenizer": "bytes", "vocab_size": 256, "append_eod": 7})");
  folder.write("more/dataset.json",
               R"({"tokenizer": "bytes", "vocab_size": 256, "append_eod": 9})");
  overrides.front() =
      "data.train=[\"" + folder.path() + "/data/train\", \"" + folder.path() + "/more/train\"]";
  LoadedConfig loaded = load_tiny(overrides);
  CHECK_THAT(config_error_of([&] { resolve_config(loaded, 1); }),
             Contains("documents end with token 7") && Contains("and with 9 by"));
}

TEST_CASE("samples beside the token files are packed and do not see each other",
          "[spec][documents]") {
  const TemporaryFolder folder;
  const std::vector<std::string> described_data =
      described(folder, R"({"tokenizer": "bytes", "samples": {"kind": "conversations"}})");
  const std::vector<std::string> train(described_data.begin(), described_data.end() - 1);
  const auto data_of = [&](const std::vector<std::string>& more) {
    std::vector<std::string> overrides = train;
    overrides.insert(overrides.end(), more.begin(), more.end());
    LoadedConfig loaded = load_tiny(overrides);
    resolve_data(loaded);
    return loaded.config.data;
  };
  const DataConfig data = data_of({});
  CHECK(data.samples);
  CHECK(data.pack == DocumentPack::kBestFit);
  CHECK(data.document_attention);
  const DataConfig single = data_of({"data.pack=\"none\""});
  CHECK(single.samples);
  CHECK(single.pack == DocumentPack::kNone);
  CHECK_FALSE(single.document_attention);
  CHECK_FALSE(data_of({"data.document_attention=false"}).document_attention);
  CHECK_THAT(config_error_of([&] { data_of({"data.samples=false"}); }),
             Contains("data.samples: false") && Contains("holds conversations"));
}

TEST_CASE("JSON lines are samples, and how they become some is about them alone",
          "[spec][documents]") {
  const auto data_of = [](const std::vector<std::string>& overrides) {
    LoadedConfig loaded = load_tiny(overrides);
    resolve_data(loaded);
    return loaded.config.data;
  };
  for (const char* const name : {"a.jsonl", "b/c.ndjson", "a.jsonl.gz", "x.y.jsonl.zst"}) {
    const DataConfig data = data_of({fmt::format("data.train=\"{}\"", name), "data.validation=null",
                                     "data.train_on=last_turn"});
    CHECK(data.samples);
    CHECK(data.sample.train_on == TrainOn::kLastTurn);
    CHECK(data.pack == DocumentPack::kBestFit);
  }
  CHECK_THAT(config_error_of([&] { data_of({"data.train_on=last_turn"}); }),
             Contains("data.train_on: is about JSON lines, of which there are none"));
}

}  // namespace dstrain
