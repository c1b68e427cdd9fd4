// Checkpoints that DeepSpeed wrote of transformers' models, through our names, against what its own
// zero_to_fp32 and moments are (tests/golden/README.md).
#include "engine/checkpoint/foreign/deepspeed/deepspeed_source.h"

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/conversion.h"
#include "engine/checkpoint/foreign/huggingface/names.h"
#include "engine/checkpoint/recognise_format.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/weights_source.h"
#include "engine/config/config_error.h"
#include "engine/config/model_json.h"
#include "tests/unit/checkpoint/scratch_folder.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

const fs::path kGolden = DSTRAIN_UNPACKED "/deepspeed-models";

std::vector<float> read_all(const TensorSource& source,
                            const std::string& state,
                            const Piece& piece) {
  std::vector<float> values(static_cast<std::size_t>(piece.flat.size()));
  source.read(state, piece, {values.data(), DType::kF32, Shape{piece.flat.size()}});
  return values;
}

/// Every tensor of ours, as the golden file has it under Hugging Face's names.
std::map<std::string, std::vector<float>> expected(const fs::path& folder,
                                                   const ModelSpec& model,
                                                   const std::string& prefix) {
  const SafetensorsFile file(folder / "expected.safetensors");
  std::map<std::string, std::vector<float>> all;
  for (const ForeignTensor& tensor : huggingface_tensors(model)) {
    const auto data = file.data(file.tensors().at(prefix + tensor.name));
    for (std::size_t i = 0; i < tensor.parts.size(); ++i) {
      const ModelTensor& part = tensor.parts[i];
      std::vector<float>& values = all[part.name];
      values.resize(static_cast<std::size_t>(part.shape.numel()));
      read_placed(place_of_part(tensor, i, data.data(), DType::kF32),
                  piece_of(part, {0, part.shape.numel()}),
                  {values.data(), DType::kF32, Shape{part.shape.numel()}});
    }
  }
  return all;
}

TEST_CASE("a model that DeepSpeed trained has the weights and moments that DeepSpeed gives",
          "[checkpoint][deepspeed]") {
  const std::string name = GENERATE("gpt2-zero1-bf16", "gpt2-zero3-fp32", "llama-zero2-fp32",
                                    "llama-zero3-bf16", "llama-zero1-tp2");
  CAPTURE(name);
  const WeightsSource source = open_weights(kGolden / name);
  CHECK(source.format == CheckpointFormat::kDeepSpeed);
  CHECK(source.training.step == 2);
  CHECK(source.training.optimizer_step == 2);
  const std::map<std::string, std::string> states = {
      {"parameter", ""}, {"exp_avg", "exp_avg/"}, {"exp_avg_sq", "exp_avg_sq/"}};
  std::size_t read = 0;
  for (const auto& [state, prefix] : states) {
    for (const auto& [tensor, values] : expected(kGolden / name, source.model, prefix)) {
      CAPTURE(state, tensor);
      for (const ModelTensor& ours : model_tensors(source.model)) {
        if (ours.name != tensor) continue;
        const std::int64_t numel = ours.shape.numel();
        CHECK(read_all(*source.tensors, state, piece_of(ours, {0, numel})) == values);
        // In two ranges that begin and end within a row, and by columns.
        std::vector<float> halves =
            read_all(*source.tensors, state, piece_of(ours, {0, numel / 2 + 1}));
        for (const float value :
             read_all(*source.tensors, state, piece_of(ours, {numel / 2 + 1, numel}))) {
          halves.push_back(value);
        }
        CHECK(halves == values);
        if (ours.shape.rank() == 2) {
          const std::int64_t width = ours.shape[1];
          const std::vector<float> columns =
              read_all(*source.tensors, state, columns_of(ours, {1, width - 1}));
          for (std::size_t i = 0; i < columns.size(); ++i) {
            const auto row = static_cast<std::int64_t>(i) / (width - 2);
            const auto column = 1 + static_cast<std::int64_t>(i) % (width - 2);
            REQUIRE(columns[i] == values[static_cast<std::size_t>(row * width + column)]);
          }
        }
        ++read;
      }
    }
  }
  CHECK(read == source.tensors->entries().size());
  CHECK(read == 3 * model_tensors(source.model).size());
}

TEST_CASE("a universal checkpoint of the same run gives the same", "[checkpoint][deepspeed]") {
  const std::string name = GENERATE("gpt2-zero1-bf16", "llama-zero2-fp32");
  const WeightsSource source = open_weights(kGolden / name / "global_step2_universal");
  for (const auto& [tensor, values] : expected(kGolden / name, source.model, "")) {
    CAPTURE(tensor);
    for (const ModelTensor& ours : model_tensors(source.model)) {
      if (ours.name != tensor) continue;
      CHECK(read_all(*source.tensors, "parameter", piece_of(ours, {0, ours.shape.numel()})) ==
            values);
    }
  }
}

TEST_CASE("a DeepSpeed checkpoint becomes a Hugging Face folder and a dstrain checkpoint",
          "[checkpoint][deepspeed]") {
  const std::string name = GENERATE("gpt2-zero1-bf16", "llama-zero3-bf16", "llama-zero1-tp2");
  const checkpoint_test::ScratchFolder scratch;
  for (const TargetFormat format : {TargetFormat::kHuggingFace, TargetFormat::kDstrain}) {
    const fs::path to = scratch.path() / std::string(name_of(format));
    const auto summary =
        convert_checkpoint({.from = kGolden / name, .to = to, .format = format}, {});
    REQUIRE(summary.has_value());
    CHECK(summary->optimizer_left_out == (format == TargetFormat::kHuggingFace));
    const WeightsSource written = open_weights(to);
    const bool has_moments = format == TargetFormat::kDstrain;
    CHECK(written.training.optimizer_step == (has_moments ? 2 : 0));
    for (const auto& [state, prefix] : std::map<std::string, std::string>{
             {"parameter", ""}, {"exp_avg", "exp_avg/"}, {"exp_avg_sq", "exp_avg_sq/"}}) {
      if (state != "parameter" && !has_moments) continue;
      for (const auto& [tensor, values] : expected(kGolden / name, written.model, prefix)) {
        CAPTURE(name_of(format), state, tensor);
        for (const ModelTensor& ours : model_tensors(written.model)) {
          if (ours.name != tensor) continue;
          CHECK(read_all(*written.tensors, state, piece_of(ours, {0, ours.shape.numel()})) ==
                values);
        }
      }
    }
  }
}

TEST_CASE("resuming from DeepSpeed's checkpoint names the command that converts it",
          "[checkpoint][deepspeed]") {
  const std::string whole = (kGolden / "gpt2-zero1-bf16").string();
  for (const std::string& path : {whole, whole + "/global_step2", whole + "/"}) {
    const std::string named = path.ends_with('/') ? whole : path;
    CHECK_THROWS_AS(refuse_to_resume_deepspeed(path), ConfigError);
    CHECK_THROWS_WITH(refuse_to_resume_deepspeed(path),
                      Contains("dstrain convert-checkpoint --from " + named + " --to " + named +
                               "-dstrain and set checkpoint.resume to"));
  }
  CHECK_THROWS_WITH(
      refuse_to_resume_deepspeed(DSTRAIN_UNPACKED "/deepspeed-checkpoints/zero3-bf16"),
      Contains("zero3-bf16-dstrain --model CONFIG"));
  CHECK_NOTHROW(refuse_to_resume_deepspeed("tests/golden/gpt2-tiny"));
}

TEST_CASE("a DeepSpeed checkpoint of another model, or of none, is refused by name",
          "[checkpoint][deepspeed]") {
  const checkpoint_test::ScratchFolder scratch;
  fs::copy(kGolden / "llama-zero2-fp32" / "global_step2", scratch.path() / "global_step2",
           fs::copy_options::recursive);
  const fs::path step = scratch.path() / "global_step2";
  CHECK_THROWS_AS(open_weights(step), ConfigError);
  CHECK_THROWS_WITH(open_weights(step), Contains("--model"));
  CHECK_NOTHROW(open_weights(step, kGolden / "llama-zero2-fp32"));
  CHECK_THROWS_AS(open_weights(step, kGolden / "gpt2-zero1-bf16"), CheckpointError);
  CHECK_THROWS_WITH(open_weights(step, kGolden / "gpt2-zero1-bf16"),
                    Contains("holds no \"transformer.wte.weight\""));
  ModelSpec model = load_model_spec((kGolden / "llama-zero2-fp32").string());
  model.intermediate_size = 11;
  CHECK_THROWS_WITH(open_weights_of(model, step), Contains("has shape [10, 8]"));
  model.intermediate_size = 10;
  model.num_layers = 1;
  CHECK_THROWS_WITH(open_weights_of(model, step), Contains("and 8 more"));
  model.num_layers = 3;
  CHECK_THROWS_WITH(open_weights_of(model, step),
                    Contains("holds no \"model.layers.2.input_layernorm.weight\""));
}

}  // namespace
}  // namespace dstrain
