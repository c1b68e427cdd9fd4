// Recognises a checkpoint's format by its content.
#include "engine/checkpoint/recognise_format.h"

#include "engine/checkpoint/conversion.h"
#include "engine/checkpoint/weights_source.h"
#include "engine/config/config_error.h"
#include "tests/unit/checkpoint/scratch_folder.h"
#include "tests/unit/checkpoint/toy_state.h"

using namespace dstrain;
using namespace dstrain::checkpoint_test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

const fs::path kGolden = "tests/golden/huggingface";

void refuses(const fs::path& path, const std::string& reason) {
  CHECK_THROWS_AS(recognise_format(path), ConfigError);
  CHECK_THROWS_WITH(recognise_format(path), Contains(path.string()) && Contains(reason));
}

}  // namespace

TEST_CASE("each format is recognised by its content", "[checkpoint]") {
  const ScratchFolder folder;
  CHECK(recognise_format(kGolden / "gpt2-f32").format == CheckpointFormat::kHuggingFace);
  CHECK(recognise_format(kGolden / "gpt2.bin").format == CheckpointFormat::kLlmC);
  const fs::path ours = folder.path() / "ours";
  // With the config.json that it came with, it is still ours.
  REQUIRE(convert_checkpoint({.from = kGolden / "gpt2-f32", .to = ours}, {}));
  REQUIRE(fs::exists(ours / "config.json"));
  CHECK(recognise_format(ours).format == CheckpointFormat::kDstrain);
}

TEST_CASE("a run stands for its newest whole checkpoint", "[checkpoint]") {
  const ScratchFolder run;
  save_toy(run.path() / "checkpoints", 4, {}, 1);
  save_toy(run.path() / "checkpoints", 8, {}, 1);
  for (const fs::path& path : {run.path(), run.path() / "checkpoints"}) {
    const RecognisedCheckpoint found = recognise_format(path);
    CHECK(found.format == CheckpointFormat::kDstrain);
    CHECK(found.path == run.path() / "checkpoints" / "step-00000008");
  }
}

TEST_CASE("DeepSpeed's checkpoints are known for what they are", "[checkpoint]") {
  const ScratchFolder folder;
  fs::create_directories(folder.path() / "global_step5");
  overwrite_file(folder.path() / "latest", "global_step5");
  overwrite_file(folder.path() / "global_step5" / "mp_rank_00_model_states.pt", "");
  const RecognisedCheckpoint found = recognise_format(folder.path());
  CHECK(found.format == CheckpointFormat::kDeepSpeed);
  CHECK(found.path == folder.path() / "global_step5");
  CHECK(recognise_format(found.path).format == CheckpointFormat::kDeepSpeed);
  CHECK_THROWS_WITH(open_weights(folder.path()), Contains("is a DeepSpeed checkpoint"));
}

TEST_CASE("what is no checkpoint says what it is instead", "[checkpoint]") {
  const ScratchFolder folder;
  refuses(folder.path() / "nowhere", "there is no such file or folder");
  refuses(folder.path(), "holds no checkpoint: expected a dstrain checkpoint");
  overwrite_file(folder.path() / "config.json", "{}");
  refuses(folder.path(), "there is a config.json, but no *.safetensors");
  overwrite_file(folder.path() / "pytorch_model.bin", "");
  refuses(folder.path(), "PyTorch's pickle format");
  fs::remove(folder.path() / "config.json");
  overwrite_file(folder.path() / "model.safetensors", "");
  refuses(folder.path(), "there are *.safetensors, but no config.json");
  refuses(folder.path() / "model.safetensors", "name its folder, " + folder.path().string());
  refuses(folder.path() / "pytorch_model.bin", "is a file, but not an llm.c GPT-2 model");
}
