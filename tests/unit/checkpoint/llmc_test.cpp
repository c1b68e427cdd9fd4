// llm.c's GPT-2 files, against one that Python wrote (tests/golden/huggingface/gpt2.bin).
#include <fstream>

#include "engine/checkpoint/checkpoint_error.h"
#include "engine/checkpoint/conversion.h"
#include "engine/checkpoint/foreign/llmc/gpt2_file.h"
#include "engine/config/config_error.h"
#include "engine/config/model_json.h"
#include "tests/unit/checkpoint/foreign_weights.h"
#include "tests/unit/checkpoint/scratch_folder.h"

using namespace dstrain;
using namespace dstrain::checkpoint_test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

const fs::path kFolder = "tests/golden/huggingface/gpt2-f32";
const fs::path kFile = "tests/golden/huggingface/gpt2.bin";

void put_int(const fs::path& path, std::int64_t index, std::int32_t value) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(index * 4);
  file.write(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

TEST_CASE("llm.c's weights are under our names, padding left out", "[checkpoint]") {
  const LlmcGpt2File file(kFile);
  CHECK(parameters_of(file) == weights_in_file(kFolder / "expected.safetensors"));
  CHECK(file.model().vocab_size == 61);
  CHECK(file.model() == load_model_spec(kFolder.string()));
}

TEST_CASE("a GPT-2 becomes the very file that llm.c would have", "[checkpoint]") {
  const ScratchFolder folder;
  const fs::path target = folder.path() / "gpt2.bin";
  const auto summary = convert_checkpoint({.from = kFolder, .to = target}, {});
  REQUIRE(summary);
  CHECK(summary->target_format == TargetFormat::kLlmC);
  CHECK(read_file(target) == read_file(kFile));
  CHECK(summary->bytes == static_cast<std::int64_t>(fs::file_size(kFile)));
}

TEST_CASE("llm.c's bf16 files hold the nearest bf16", "[checkpoint]") {
  const ScratchFolder folder;
  const fs::path target = folder.path() / "gpt2.bin";
  REQUIRE(convert_checkpoint({.from = kFolder, .to = target, .dtype = DType::kBF16}, {}));
  CHECK(fs::file_size(target) == 1024 + (fs::file_size(kFile) - 1024) / 2);
  const Weights exact = weights_in_file(kFolder / "expected.safetensors");
  for (const auto& [name, values] : parameters_of(LlmcGpt2File(target))) {
    INFO(name);
    REQUIRE(values.size() == exact.at(name).size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      REQUIRE(values[i] == to_float(to_bf16(exact.at(name)[i])));
    }
  }
}

TEST_CASE("a damaged llm.c file is refused", "[checkpoint]") {
  const ScratchFolder folder;
  const auto refuses = [&](std::int64_t index, std::int32_t value, const std::string& reason) {
    const fs::path path = folder.path() / "model.bin";
    fs::copy_file(kFile, path, fs::copy_options::overwrite_existing);
    put_int(path, index, value);
    CHECK_THROWS_WITH(LlmcGpt2File(path), Contains(path.string()) && Contains(reason));
  };
  refuses(1, 4, "magic 20240326 and version 4 are not those of an llm.c GPT-2 model");
  refuses(2, 0, "the sizes in its header are impossible");
  refuses(4, 1 << 30, "the sizes in its header are impossible");
  refuses(7, 60, "the sizes in its header are impossible");
  refuses(7, 256, "has 73216 bytes, the sizes in its header make 85504");
  refuses(5, 5, "5 heads do not divide");
  overwrite_file(folder.path() / "short", read_file(kFile).substr(0, 1000));
  CHECK_THROWS_WITH(LlmcGpt2File(folder.path() / "short"), Contains("too few for the header"));
  put_int(folder.path() / "model.bin", 0, 20240803);
  CHECK_THROWS_WITH(is_llmc_gpt2_file(folder.path() / "model.bin"), Contains("Llama 3"));
}

TEST_CASE("llm.c has no file for other models", "[checkpoint]") {
  const ScratchFolder folder;
  const auto refuses = [&](const fs::path& from, std::optional<DType> dtype,
                           const std::string& reason) {
    CHECK_THROWS_WITH(
        convert_checkpoint({.from = from, .to = folder.path() / "x.bin", .dtype = dtype}, {}),
        Contains(reason));
    CHECK(fs::is_empty(folder.path()));
  };
  refuses("tests/golden/llama-tiny", {}, "no file for this model: it is a llama");
  refuses(kFolder, DType::kF16, "--dtype fp16: an llm.c model holds fp32 or bf16");
}
