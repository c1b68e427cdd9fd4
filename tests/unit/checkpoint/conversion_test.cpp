// Conversions end to end: bit for bit there and back, nothing overwritten, nothing half done left
// under a name that readers trust.
#include "engine/checkpoint/conversion.h"

#include <fstream>
#include <tuple>

#include <nlohmann/json.hpp>

#include "engine/checkpoint/checkpoint_source.h"
#include "engine/checkpoint/foreign/huggingface/folder.h"
#include "engine/config/config_error.h"
#include "engine/config/model_json.h"
#include "tests/unit/checkpoint/foreign_weights.h"
#include "tests/unit/checkpoint/scratch_folder.h"
#include "tests/unit/checkpoint/toy_state.h"

using namespace dstrain;
using namespace dstrain::checkpoint_test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

const fs::path kGolden = "tests/golden/huggingface";

void refuses(const ConversionRequest& request, const std::string& reason) {
  CHECK_THROWS_AS(convert_checkpoint(request, {}), ConfigError);
  CHECK_THROWS_WITH(convert_checkpoint(request, {}), Contains(reason));
}

/// Fails at change `fail_at` of the disk, counted from 0.
DiskProbe failing_probe(int fail_at) {
  return [fail_at, seen = 0](const DiskChange& change) mutable {
    if (seen++ == fail_at) {
      throw StorageError("injected at " + change.path.string());
    }
  };
}

nlohmann::json read_json(const fs::path& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(in);
}

}  // namespace

TEST_CASE("Hugging Face to dstrain and back is the same, bit for bit", "[checkpoint]") {
  const std::string name =
      GENERATE("gpt2-f32", "mistral-bf16-sharded", "qwen2-f16", "llama-biases-sharded",
               "qwen3-bf16", "olmo2-f32-sharded", "phi3-bf16", "starcoder2-bf16", "gemma3-bf16",
               "gpt-neox-f16-sharded", "opt-f16", "bloom-bf16", "baichuan-f32-sharded",
               "mixtral-bf16", "qwen3-moe-bf16-sharded", "olmoe-f32", "gpt-oss-bf16");
  const int ranks = GENERATE(1, 3);
  INFO(name << " over " << ranks);
  const ScratchFolder folder;
  const fs::path ours = folder.path() / "ours";
  const auto there = convert_checkpoint({.from = kGolden / name, .to = ours, .ranks = ranks}, {});
  REQUIRE(there);
  CHECK(there->files.size() == static_cast<std::size_t>(ranks));
  CHECK(parameters_of(CheckpointSource(ours)) ==
        weights_in_file(kGolden / name / "expected.safetensors"));
  // F16 has no place in our checkpoints: f32 until it goes back.
  const bool is_f16 = name.find("-f16") != std::string::npos;
  const fs::path back = folder.path() / "back";
  const auto second =
      convert_checkpoint({.from = ours,
                          .to = back,
                          .dtype = is_f16 ? std::optional(DType::kF16) : std::nullopt,
                          .max_shard_bytes = 7000},
                         {});
  REQUIRE(second);
  CHECK(second->target_format == TargetFormat::kHuggingFace);
  CHECK(second->files.size() > 1);
  CHECK(raw_tensors(back) == raw_tensors(kGolden / name));
  CHECK(load_model_spec(back.string()) == load_model_spec((kGolden / name).string()));
  // Token ids, windows and whatever else the config.json said.
  auto config = read_json(back / "config.json");
  auto original = read_json(kGolden / name / "config.json");
  config.erase("torch_dtype");
  CHECK(config == original);
}

TEST_CASE("experts in one tensor are written one by one", "[checkpoint]") {
  const ScratchFolder folder;
  REQUIRE(
      convert_checkpoint({.from = kGolden / "olmoe-as-held", .to = folder.path() / "ours"}, {}));
  REQUIRE(convert_checkpoint({.from = folder.path() / "ours", .to = folder.path() / "back"}, {}));
  CHECK(raw_tensors(folder.path() / "back") == raw_tensors(kGolden / "olmoe-f32"));
}

TEST_CASE("shards are as large as allowed, and the index says what is where", "[checkpoint]") {
  const ScratchFolder folder;
  const fs::path target = folder.path() / "sharded";
  const auto summary = convert_checkpoint({.from = kGolden / "gpt2-f32",
                                           .to = target,
                                           .format = TargetFormat::kHuggingFace,
                                           .max_shard_bytes = 12000},
                                          {});
  REQUIRE(summary);
  const auto index = read_json(target / "model.safetensors.index.json");
  CHECK(index["metadata"]["total_size"] == summary->bytes);
  std::int64_t total = 0;
  std::size_t tensors = 0;
  for (const std::string& name : summary->files) {
    const SafetensorsFile file(target / name);
    CHECK(file.metadata().at("format") == "pt");
    std::int64_t bytes = 0;
    for (const auto& [tensor, entry] : file.tensors()) {
      CHECK(index["weight_map"][tensor] == name);
      bytes += entry.end_byte - entry.begin_byte;
      ++tensors;
    }
    CHECK((bytes <= 12000 || file.tensors().size() == 1));
    total += bytes;
  }
  CHECK(total == summary->bytes);
  CHECK(index["weight_map"].size() == tensors);
  CHECK(summary->files.size() > 4);
  CHECK(summary->files.front() ==
        fmt::format("model-00001-of-{:05}.safetensors", summary->files.size()));
}

TEST_CASE("one file of fp32 is what the weights are", "[checkpoint]") {
  const ScratchFolder folder;
  const fs::path target = folder.path() / "weights.safetensors";
  const auto summary =
      convert_checkpoint({.from = kGolden / "mistral-bf16-sharded", .to = target}, {});
  REQUIRE(summary);
  CHECK(summary->target_format == TargetFormat::kF32);
  const HuggingFaceFolder source(kGolden / "mistral-bf16-sharded",
                                 load_model_spec((kGolden / "mistral-bf16-sharded").string()));
  const Weights file = weights_in_file(target);
  CHECK(file.size() == source.entries().size());
  CHECK(file.at("model.layers.1.mlp.down_proj.weight") ==
        parameters_of(source).at("blocks.1.mlp.down.weight"));
}

TEST_CASE("a config.json is written for a model that never had one", "[checkpoint]") {
  const ScratchFolder folder;
  for (const char* name :
       {"gpt2-tiny", "llama-tiny", "qwen2-tiny", "llama3-rope-tiny", "bloom-tiny", "baichuan2-tiny",
        "mixtral-tiny", "qwen3-moe-tiny", "olmoe-tiny"}) {
    INFO(name);
    const ModelSpec model = load_model_spec(std::string("tests/golden/") + name);
    // A checkpoint whose stored config alone says what it is of.
    const fs::path ours = folder.path() / name;
    REQUIRE(convert_checkpoint({.from = std::string("tests/golden/") + name, .to = ours}, {}));
    fs::remove(ours / "config.json");
    const fs::path exported = folder.path() / (std::string(name) + "-hf");
    REQUIRE(convert_checkpoint({.from = ours, .to = exported}, {}));
    CHECK(load_model_spec(exported.string()) == model);
    CHECK(raw_tensors(exported) == raw_tensors(std::string("tests/golden/") + name));
    const auto config = read_json(exported / "config.json");
    CHECK(config["torch_dtype"] == "float32");
    CHECK(config["dtype"] == "float32");
    CHECK(config["architectures"].size() == 1);
    CHECK(config["eos_token_id"].is_null());
    if (model.position == PositionKind::kRope) {
      CHECK(config["rope_theta"] == config["rope_parameters"]["rope_theta"]);
    }
  }
}

TEST_CASE("a number that transformers takes with a point alone has one", "[checkpoint]") {
  const auto [from, key, value] =
      GENERATE(std::tuple("huggingface/gpt-oss-bf16", "swiglu_limit", 7.0),
               std::tuple("deepseek-v2-tiny", "routed_scaling_factor", 1.0));
  const ScratchFolder folder;
  const fs::path ours = folder.path() / "ours";
  REQUIRE(convert_checkpoint({.from = fs::path("tests/golden") / from, .to = ours}, {}));
  fs::remove(ours / "config.json");
  REQUIRE(convert_checkpoint({.from = ours, .to = folder.path() / "back"}, {}));
  const auto config = read_json(folder.path() / "back" / "config.json");
  CHECK(config[key].is_number_float());
  CHECK(config[key] == value);
}

TEST_CASE("latents and experts beside one for every token go there and back, bit for bit",
          "[checkpoint]") {
  const fs::path from = fs::path("tests/golden") /
                        GENERATE("deepseek-v2-tiny", "deepseek-v2-lite-tiny", "deepseek-v3-tiny");
  const ScratchFolder folder;
  REQUIRE(convert_checkpoint({.from = from, .to = folder.path() / "ours", .ranks = 2}, {}));
  fs::remove(folder.path() / "ours" / "config.json");  // it is then written anew
  REQUIRE(convert_checkpoint({.from = folder.path() / "ours", .to = folder.path() / "back"}, {}));
  CHECK(raw_tensors(folder.path() / "back") == raw_tensors(from));
  CHECK(load_model_spec((folder.path() / "back").string()) == load_model_spec(from.string()));
}

TEST_CASE("weights in MXFP4 are written back in bf16, and config.json says nothing else",
          "[checkpoint]") {
  const ScratchFolder folder;
  const fs::path from = kGolden / "gpt-oss-mxfp4-bf16";
  REQUIRE(convert_checkpoint({.from = from, .to = folder.path() / "ours"}, {}));
  const fs::path back = folder.path() / "back";
  REQUIRE(convert_checkpoint({.from = folder.path() / "ours", .to = back}, {}));
  CHECK_FALSE(read_json(back / "config.json").contains("quantization_config"));
  const HuggingFaceFolder written(back, load_model_spec(back.string()));
  CHECK(parameters_of(written) == weights_in_file(from / "expected.safetensors"));
  for (const TensorSource::Entry& entry : written.entries()) {
    CHECK(entry.dtype == DType::kBF16);
  }
}

TEST_CASE("tokenizer files travel with the weights", "[checkpoint]") {
  const ScratchFolder folder;
  const fs::path source = folder.path() / "source";
  fs::copy(kGolden / "gpt2-f32", source);
  overwrite_file(source / "tokenizer.json", "{\"version\": \"1.0\"}");
  overwrite_file(source / "merges.txt", "a b\n");
  REQUIRE(convert_checkpoint({.from = source, .to = folder.path() / "ours"}, {}));
  REQUIRE(convert_checkpoint({.from = folder.path() / "ours", .to = folder.path() / "back"}, {}));
  CHECK(read_file(folder.path() / "back" / "tokenizer.json") == "{\"version\": \"1.0\"}");
  CHECK(read_file(folder.path() / "back" / "merges.txt") == "a b\n");
}

TEST_CASE("the SentencePiece model of a run's data goes along", "[checkpoint]") {
  const ScratchFolder folder;
  const fs::path ours = folder.path() / "ours";
  REQUIRE(convert_checkpoint({.from = "tests/golden/llama-tiny", .to = ours}, {}));
  const fs::path data = folder.path() / "data";
  fs::create_directories(data);
  overwrite_file(data / "tokenizer.model", "a model");
  overwrite_file(data / "dataset.json",
                 R"({"tokenizer": "sentencepiece:elsewhere/tokenizer.model"})");
  // As a run would have stored it.
  Manifest manifest = read_manifest(ours);
  auto config = nlohmann::json::parse(manifest.training.config);
  config["data"] = {{"train", (data / "train").string()}};
  manifest.training.config = config.dump();
  overwrite_file(ours / "manifest.json", to_text(manifest));
  const auto summary = convert_checkpoint({.from = ours, .to = folder.path() / "out"}, {});
  REQUIRE(summary);
  CHECK(summary->companions ==
        std::vector<std::string>{"tokenizer.model", "tokenizer_config.json"});
  CHECK(read_file(folder.path() / "out" / "tokenizer.model") == "a model");
}

TEST_CASE("a checkpoint that does not say which model it is of is refused", "[checkpoint]") {
  const ScratchFolder folder;
  save_toy(folder.path() / "checkpoints", 40, {.dp = 3, .tp = 2}, 1);
  const fs::path step = folder.path() / "checkpoints" / "step-00000040";
  CHECK_THROWS_WITH(convert_checkpoint({.from = step, .to = folder.path() / "x"}, {}),
                    Contains("does not say which model it is of"));
}

TEST_CASE("nothing that is there already is overwritten", "[checkpoint]") {
  const ScratchFolder folder;
  overwrite_file(folder.path() / "precious", "text");
  refuses({.from = kGolden / "gpt2-f32", .to = folder.path()}, "is not empty");
  refuses({.from = kGolden / "gpt2-f32", .to = folder.path() / "precious"}, "is a file");
  overwrite_file(folder.path() / "precious.bin", "text");
  refuses({.from = kGolden / "gpt2-f32", .to = folder.path() / "precious.bin"}, "already exists");
  CHECK(read_file(folder.path() / "precious.bin") == "text");
  REQUIRE(convert_checkpoint({.from = kGolden / "gpt2-f32", .to = folder.path() / "done"}, {}));
  refuses({.from = kGolden / "gpt2-f32", .to = folder.path() / "done"}, "is not empty");
}

TEST_CASE("requests that contradict themselves are refused before anything is written",
          "[checkpoint]") {
  const ScratchFolder folder;
  const fs::path to = folder.path() / "to";
  const fs::path from = kGolden / "gpt2-f32";
  refuses({.from = from, .to = to, .format = TargetFormat::kF32, .dtype = DType::kBF16},
          "--format fp32 writes fp32");
  refuses({.from = from, .to = to, .format = TargetFormat::kDstrain, .dtype = DType::kF16},
          "--dtype fp16: a dstrain checkpoint holds fp32 or bf16");
  refuses({.from = from, .to = to, .format = TargetFormat::kHuggingFace, .ranks = 2},
          "--ranks is for dstrain checkpoints");
  CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("a conversion that fails anywhere is never taken for whole, and can continue",
          "[checkpoint]") {
  struct Case {
    TargetFormat format;
    std::string name;
  };
  const auto [format, name] =
      GENERATE(Case{TargetFormat::kHuggingFace, "hf"}, Case{TargetFormat::kDstrain, "ours"},
               Case{TargetFormat::kF32, "one.safetensors"}, Case{TargetFormat::kLlmC, "one.bin"});
  INFO(name);
  const fs::path from = kGolden / "gpt2-f32";
  ConversionRequest request{.from = from, .format = format, .max_shard_bytes = 20000};
  request.ranks = format == TargetFormat::kDstrain ? 3 : 1;
  const ScratchFolder reference;
  request.to = reference.path() / name;
  REQUIRE(convert_checkpoint(request, {}));

  const auto files_of = [](const fs::path& path) {
    std::map<std::string, std::string> files;
    if (!fs::is_directory(path)) {
      files.emplace("", fs::exists(path) ? read_file(path) : "");
      return files;
    }
    for (const auto& entry : fs::directory_iterator(path)) {
      files.emplace(entry.path().filename().string(), read_file(entry.path()));
    }
    return files;
  };
  const auto whole = files_of(request.to);
  std::int64_t most_taken_up = 0;
  int changes = 0;
  for (bool failed = true; failed; ++changes) {
    INFO("change " << changes);
    const ScratchFolder folder;
    request.to = folder.path() / name;
    request.probe = failing_probe(changes);
    failed = false;
    try {
      convert_checkpoint(request, {});
    } catch (const StorageError&) {
      failed = true;
    }
    // The last thing to fail is the sync of a name that is already right.
    if (files_of(request.to) != whole) {
      REQUIRE(failed);
      if (fs::is_directory(request.to)) {
        CHECK_THROWS(recognise_format(request.to));
      } else {
        CHECK_FALSE(fs::exists(request.to));
      }
      request.probe = {};
      const auto summary = convert_checkpoint(request, {});
      REQUIRE(summary);
      most_taken_up = std::max(most_taken_up, summary->files_taken_up);
    }
    REQUIRE(files_of(request.to) == whole);
  }
  CHECK(changes > 5);
  const bool is_folder = fs::is_directory(reference.path() / name);
  CHECK(most_taken_up == (format == TargetFormat::kDstrain ? 3 : is_folder ? 4 : 0));
}

TEST_CASE("an interrupted conversion continues only with the same source and choices",
          "[checkpoint]") {
  const ScratchFolder folder;
  const fs::path from = folder.path() / "from";
  const fs::path to = folder.path() / "to";
  fs::copy(kGolden / "mistral-bf16-sharded", from);
  ConversionRequest request{.from = from, .to = to, .ranks = 4};
  int calls = 0;
  const auto stopped =
      convert_checkpoint(request, {.on_progress = [](const ConversionProgress&) {},
                                   .stop_requested = [&] { return ++calls > 60; }});
  CHECK_FALSE(stopped);
  REQUIRE(fs::exists(to));
  CHECK_THROWS_WITH(recognise_format(to), Contains("interrupted"));

  ConversionRequest other = request;
  other.dtype = DType::kF32;
  refuses(other, "holds an interrupted conversion of something else");
  other = request;
  other.from = kGolden / "mistral-bf16-sharded";
  refuses(other, "holds an interrupted conversion of something else");
  fs::last_write_time(from / "model-00002-of-00006.safetensors",
                      fs::file_time_type::clock::now() + std::chrono::seconds(3));
  refuses(request, "or its source has changed since");
}

TEST_CASE("a finished file that was damaged meanwhile is written again", "[checkpoint]") {
  const ScratchFolder folder;
  const fs::path to = folder.path() / "to";
  ConversionRequest request{.from = kGolden / "llama-biases-sharded", .to = to, .ranks = 4};
  for (int changes = 1; !fs::exists(to / "rank-00002.safetensors"); ++changes) {
    fs::remove_all(to);
    request.probe = failing_probe(changes);
    CHECK_THROWS_AS(convert_checkpoint(request, {}), StorageError);
  }
  flip_bit(to / "rank-00000.safetensors", 9000, 3);
  request.probe = {};
  const auto summary = convert_checkpoint(request, {});
  REQUIRE(summary);
  CHECK(summary->files_taken_up < 3);
  CHECK(parameters_of(CheckpointSource(to)) ==
        weights_in_file(kGolden / "llama-biases-sharded" / "expected.safetensors"));
}

TEST_CASE("a source damaged since it was written is found while it is read", "[checkpoint]") {
  const ScratchFolder folder;
  const fs::path ours = folder.path() / "ours";
  REQUIRE(
      convert_checkpoint({.from = kGolden / "llama-biases-sharded", .to = ours, .ranks = 2}, {}));
  flip_bit(ours / "rank-00001.safetensors", fs::file_size(ours / "rank-00001.safetensors") - 5, 0);
  CHECK_THROWS_AS(convert_checkpoint({.from = ours, .to = folder.path() / "hf"}, {}),
                  CheckpointError);
  CHECK_THROWS_WITH(recognise_format(folder.path() / "hf"), Contains("interrupted"));
}

TEST_CASE("progress counts every byte once when written and once when read back", "[checkpoint]") {
  const ScratchFolder folder;
  ConversionProgress last;
  const auto summary =
      convert_checkpoint({.from = kGolden / "gpt2-f32", .to = folder.path() / "to"},
                         {.on_progress =
                              [&](const ConversionProgress& progress) {
                                CHECK(progress.bytes_done >= last.bytes_done);
                                last = progress;
                              },
                          .stop_requested = [] { return false; }});
  REQUIRE(summary);
  CHECK(last.bytes_total == 2 * summary->bytes);
  CHECK(last.bytes_done >= last.bytes_total);  // headers too
  CHECK(last.bytes_done < last.bytes_total + 2 * 16384);
}
