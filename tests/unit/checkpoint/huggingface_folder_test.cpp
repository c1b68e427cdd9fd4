// Hugging Face folders against what PyTorch says lies in them (tests/golden/huggingface).
#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/foreign/huggingface/folder.h"
#include "engine/config/model_json.h"
#include "tests/unit/checkpoint/foreign_weights.h"
#include "tests/unit/checkpoint/scratch_folder.h"

using namespace dstrain;
using namespace dstrain::checkpoint_test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

const fs::path kGolden = "tests/golden/huggingface";

HuggingFaceFolder open_folder(const fs::path& folder) {
  return {folder, load_model_spec(folder.string())};
}

/// A copy that may be spoiled.
class Copy {
 public:
  explicit Copy(const std::string& name) {
    fs::copy(kGolden / name, folder_.path(),
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }
  [[nodiscard]] const fs::path& path() const { return folder_.path(); }
  void change_json(const std::string& file, const nlohmann::json& changes) const {
    std::ifstream in(path() / file);
    auto json = nlohmann::json::parse(in);
    json.merge_patch(changes);
    std::ofstream(path() / file) << json.dump();
  }
  void refuses(const std::string& reason) const {
    INFO(reason);
    CHECK_THROWS_AS(open_folder(path()), CheckpointError);
    CHECK_THROWS_WITH(open_folder(path()), Contains(path().string()) && Contains(reason));
  }
  /// Replaces model.safetensors by its tensors with `name` as `tensor`, or without it.
  void put(const std::string& name, const std::optional<SafetensorsDecl>& tensor) const {
    std::vector<SafetensorsDecl> declarations;
    std::vector<std::vector<std::byte>> data;
    {
      const SafetensorsFile file(path() / "model.safetensors");
      for (const bool of_bytes : {false, true}) {  // wide dtypes come first
        for (const auto& [key, entry] : file.tensors()) {
          if (key == name || (entry.dtype == "U8") != of_bytes) continue;
          declarations.push_back({key, entry.dtype, entry.shape});
          data.emplace_back(file.data(entry).begin(), file.data(entry).end());
        }
      }
    }
    if (tensor) {
      std::int64_t elements = 1;
      for (const std::int64_t extent : tensor->shape) {
        elements *= extent;
      }
      declarations.push_back(*tensor);
      data.emplace_back(static_cast<std::size_t>(elements * (tensor->dtype == "F32" ? 4 : 1)));
    }
    const DurableFiles files;
    SafetensorsWriter writer(files, path() / "model.safetensors", declarations, {});
    for (const auto& bytes : data) {
      writer.write(bytes);
    }
    writer.finish();
  }

 private:
  ScratchFolder folder_;
};

}  // namespace

TEST_CASE("Hugging Face's weights are under our names, as PyTorch has them", "[checkpoint]") {
  const std::string name = GENERATE(
      "gpt2-f32", "mistral-bf16-sharded", "qwen2-f16", "llama-biases-sharded", "qwen3-bf16",
      "olmo2-f32-sharded", "phi3-bf16", "starcoder2-bf16", "gemma3-bf16", "gpt-neox-f16-sharded",
      "opt-f16", "bloom-bf16", "baichuan-f32-sharded", "mixtral-bf16", "qwen3-moe-bf16-sharded",
      "olmoe-f32", "gpt-oss-bf16", "gpt-oss-mxfp4-bf16");
  INFO(name);
  const HuggingFaceFolder folder = open_folder(kGolden / name);
  const Weights expected = weights_in_file(kGolden / name / "expected.safetensors");
  CHECK(expected.size() > 20);
  CHECK(parameters_of(folder) == expected);
  const DType dtype = name.find("bf16") != std::string::npos   ? DType::kBF16
                      : name.find("-f16") != std::string::npos ? DType::kF16
                                                               : DType::kF32;
  for (const TensorSource::Entry& entry : folder.entries()) {
    CHECK(entry.dtype == dtype);
  }
}

TEST_CASE("names without prefix and buffers of old files are known", "[checkpoint]") {
  CHECK(parameters_of(open_folder(kGolden / "gpt2-of-old")) ==
        parameters_of(open_folder(kGolden / "gpt2-f32")));
}

TEST_CASE("experts that lie in one tensor are read as those that each have theirs",
          "[checkpoint]") {
  CHECK(parameters_of(open_folder(kGolden / "olmoe-as-held")) ==
        parameters_of(open_folder(kGolden / "olmoe-f32")));
  const Copy copy("olmoe-as-held");
  copy.put("model.layers.1.mlp.experts.down_proj", std::nullopt);
  copy.refuses("model.layers.1.mlp.experts.down_proj");
}

TEST_CASE("any piece of a matrix in MXFP4 is the same part of it, in every dtype", "[checkpoint]") {
  const HuggingFaceFolder folder = open_folder(kGolden / "gpt-oss-mxfp4-bf16");
  const Weights expected = weights_in_file(kGolden / "gpt-oss-mxfp4-bf16" / "expected.safetensors");
  const std::string tensor = "blocks.1.mlp.experts.1.up.weight";
  const Shape shape{32, 64};
  for (const Range flat : {Range{0, 20 * 40}, {1, 39}, {37, 200}, {5, 6}}) {
    std::vector<float> values(static_cast<std::size_t>(flat.size()), NAN);
    std::vector<BF16> narrow(values.size());
    const Piece piece{.tensor = tensor,
                      .shape = shape,
                      .box_start = {3, 11},
                      .box_extent = {20, 40},
                      .flat = flat};
    folder.read("parameter", piece, {values.data(), DType::kF32, Shape{flat.size()}});
    folder.read("parameter", piece, {narrow.data(), DType::kBF16, Shape{flat.size()}});
    for (std::int64_t i = 0; i < flat.size(); ++i) {
      const std::int64_t at = flat.begin + i;
      const auto whole = static_cast<std::size_t>((3 + at / 40) * 64 + 11 + at % 40);
      CHECK(values[static_cast<std::size_t>(i)] == expected.at(tensor)[whole]);
      CHECK(to_float(narrow[static_cast<std::size_t>(i)]) == expected.at(tensor)[whole]);
    }
  }
}

TEST_CASE("matrices in MXFP4 of which a half is missing or has another shape are refused",
          "[checkpoint]") {
  const std::string down = "model.layers.0.mlp.experts.down_proj";
  {
    const Copy copy("gpt-oss-mxfp4-bf16");
    copy.put(down + "_scales", std::nullopt);
    copy.refuses(down + "_scales");
  }
  {
    const Copy copy("gpt-oss-mxfp4-bf16");
    copy.put(down + "_blocks", std::nullopt);
    copy.refuses(down);
  }
  {
    const Copy copy("gpt-oss-mxfp4-bf16");
    copy.put(down + "_blocks", SafetensorsDecl{down + "_blocks", "U8", {2, 64, 1, 8}});
    copy.refuses("in MXFP4 is of U8 with shape [2, 64, 1, 8]");
  }
}

TEST_CASE("any piece of a tensor is the same part of it", "[checkpoint]") {
  const HuggingFaceFolder folder = open_folder(kGolden / "gpt2-f32");
  const Weights expected = weights_in_file(kGolden / "gpt2-f32" / "expected.safetensors");
  const std::string tensor = "blocks.1.attention.key.weight";  // transposed, within q‖k‖v
  const Shape shape{24, 24};
  for (const auto& [row, rows] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 24}, {5, 13}}) {
    for (const auto& [column, columns] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 24}, {8, 9}}) {
      const std::int64_t numel = rows * columns;
      for (const Range flat : {Range{0, numel},
                               {1, numel - 1},
                               {numel / 2, numel / 2 + 3},
                               {columns - 1, 3 * columns + 1},
                               {4, 4}}) {
        std::vector<float> values(static_cast<std::size_t>(flat.size()), NAN);
        folder.read("parameter",
                    {.tensor = tensor,
                     .shape = shape,
                     .box_start = {row, column},
                     .box_extent = {rows, columns},
                     .flat = flat},
                    {values.data(), DType::kF32, Shape{flat.size()}});
        for (std::int64_t i = 0; i < flat.size(); ++i) {
          const std::int64_t at = flat.begin + i;
          const auto whole =
              static_cast<std::size_t>((row + at / columns) * 24 + column + at % columns);
          CHECK(values[static_cast<std::size_t>(i)] == expected.at(tensor)[whole]);
        }
      }
    }
  }
}

TEST_CASE("weights come in the dtype that is asked for, to the nearest", "[checkpoint]") {
  const HuggingFaceFolder folder = open_folder(kGolden / "gpt2-f32");
  const ModelTensor tensor{"final_norm.weight", {24}};
  const std::vector<float> exact = read_whole(folder, tensor);
  std::vector<BF16> bf16(24);
  std::vector<F16> f16(24);
  folder.read("parameter", piece_of(tensor, {0, 24}), {bf16.data(), DType::kBF16, Shape{24}});
  folder.read("parameter", piece_of(tensor, {0, 24}), {f16.data(), DType::kF16, Shape{24}});
  for (std::size_t i = 0; i < exact.size(); ++i) {
    CHECK(std::abs(to_float(bf16[i]) / exact[i] - 1.0F) <= std::ldexp(1.0F, -8));
    CHECK(std::abs(to_float(f16[i]) / exact[i] - 1.0F) <= std::ldexp(1.0F, -11));
  }
}

TEST_CASE("a tied head in the file must be the embedding", "[checkpoint]") {
  const Copy copy("gpt2-f32");
  copy.put("lm_head.weight", SafetensorsDecl{"lm_head.weight", "F32", {61, 24}});  // zeros
  copy.refuses("\"lm_head.weight\" is not the embedding, though its config.json ties them");
  // A tied one is as good as none; as the embedding's own bytes.
  const std::string table = read_file(copy.path() / "model.safetensors");
  const SafetensorsFile file(copy.path() / "model.safetensors");
  const auto source = file.data(file.tensors().at("transformer.wte.weight"));
  const auto target = file.data(file.tensors().at("lm_head.weight"));
  std::string tied = table;
  std::memcpy(tied.data() + (target.data() - file.header().data()), source.data(), source.size());
  const ScratchFolder other;
  fs::copy(copy.path() / "config.json", other.path());
  overwrite_file(other.path() / "model.safetensors", tied);
  CHECK(parameters_of(open_folder(other.path())) ==
        parameters_of(open_folder(kGolden / "gpt2-f32")));
}

TEST_CASE("what does not fit the model is refused by file and name", "[checkpoint]") {
  const std::string norm = "transformer.h.1.ln_2.bias";
  {
    const Copy copy("gpt2-f32");
    copy.put(norm, std::nullopt);
    copy.refuses("holds no \"" + norm + "\"");
  }
  {
    const Copy copy("gpt2-f32");
    copy.put(norm, SafetensorsDecl{norm, "F32", {23}});
    copy.refuses("model.safetensors: \"" + norm +
                 "\" has shape [23], its config.json's model has [24]");
  }
  {
    const Copy copy("gpt2-f32");
    copy.put(norm, SafetensorsDecl{norm, "I8", {24}});
    copy.refuses("\"" + norm + "\" is of I8; weights of F32, BF16 and F16 are read");
  }
  {
    const Copy copy("gpt2-f32");
    copy.put("x", SafetensorsDecl{"transformer.h.2.ln_2.bias", "F32", {24}});
    copy.refuses("model.safetensors holds \"transformer.h.2.ln_2.bias\", which a gpt2");
  }
  {
    const Copy copy("gpt2-f32");
    copy.put("x", SafetensorsDecl{"ln_f.bias", "F32", {24}});
    copy.refuses("holds both \"transformer.ln_f.bias\" and \"ln_f.bias\"");
  }
  {
    const Copy copy("gpt2-f32");
    copy.change_json("config.json", {{"tie_word_embeddings", false}});
    copy.refuses(
        "holds no \"lm_head.weight\", which its config.json's model has; where the head is "
        "the embedding, \"tie_word_embeddings\": true says so");
  }
  {
    const Copy copy("gpt2-f32");
    fs::remove(copy.path() / "model.safetensors");
    copy.refuses("holds neither model.safetensors nor model.safetensors.index.json");
  }
}

TEST_CASE("DeepSeek-V3's layer for a further token is left out, and that is said", "[checkpoint]") {
  const Copy copy("../deepseek-v3-tiny");
  CHECK(open_folder(copy.path()).left_out().empty());
  copy.put("x", SafetensorsDecl{"model.layers.2.eh_proj.weight", "F32", {24}});
  CHECK(open_folder(copy.path()).left_out() == "model.layers.2.*, which predict a further token");
  copy.put("x", SafetensorsDecl{"model.layers.3.eh_proj.weight", "F32", {24}});
  copy.refuses("model.safetensors holds \"model.layers.3.eh_proj.weight\", which a deepseek_v3");
}

TEST_CASE("shards must be what their index says", "[checkpoint]") {
  const std::string index = "model.safetensors.index.json";
  const std::string norm = "model.norm.weight";
  {
    const Copy copy("mistral-bf16-sharded");
    fs::remove(copy.path() / "model-00003-of-00006.safetensors");
    copy.refuses("model-00003-of-00006.safetensors: No such file");
  }
  {
    const Copy copy("mistral-bf16-sharded");
    copy.change_json(index, {{"weight_map", {{norm, "model-00001-of-00006.safetensors"}}}});
    copy.refuses("model-00001-of-00006.safetensors does not hold \"model.norm.weight\"");
  }
  {
    const Copy copy("mistral-bf16-sharded");
    copy.change_json(index, {{"weight_map", {{norm, nullptr}}}});
    copy.refuses("\"model.norm.weight\", which model.safetensors.index.json does not list");
  }
  {
    const Copy copy("mistral-bf16-sharded");
    copy.change_json(index, {{"weight_map", {{norm, "../elsewhere.safetensors"}}}});
    copy.refuses("which is not a file beside it");
  }
  {
    const Copy copy("mistral-bf16-sharded");
    overwrite_file(copy.path() / index, "{\"weight_map\": ");
    copy.refuses("model.safetensors.index.json: expected {\"weight_map\"");
  }
}
