// "model": "folder": what a run takes from it.
#include "engine/config/model_folder.h"

#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

constexpr std::string_view kQwen = R"({"model_type": "qwen2", "vocab_size": 300, "hidden_size": 32,
  "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 4,
  "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": true})";

/// A manifest as a run saves it: one line per block, followed by thousands of tensors.
std::string manifest_with(const std::string& config) {
  return "{\"dstrain_checkpoint\": 2, \"xxh3_64\": \"0123456789abcdef\",\n\"training\": {\"step\": "
         "4},\n\"config\": " +
         json_quote(config) +
         ",\n\"files\": [{\"name\": \"rank-00000.safetensors\"}],\n\"tensors\": {\"config\": "
         "{\"shape\": [1]}}\n}\n";
}

LoadedConfig load_with_model(const std::string& folder, std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(), "model=" + folder);
  return load_tiny(overrides);
}

}  // namespace

TEST_CASE("a folder with weights is started from, one without is not", "[spec][model]") {
  const TemporaryFolder folder;
  folder.write("config.json", kQwen);
  CHECK(load_with_model(folder.path()).config.initial_weights.empty());
  folder.write("model.safetensors", "");
  const LoadedConfig loaded = load_with_model(folder.path());
  CHECK(loaded.config.initial_weights == folder.path());
  CHECK(loaded.config.model.model_type == "qwen2");
  CHECK(origin_of(loaded, "model.initial_weights") == "--set");
  // The architecture alone, from scratch.
  CHECK(load_with_model(folder.path(), {"model.initial_weights=null"})
            .config.initial_weights.empty());
  // Written by hand beside the keys.
  CHECK(load_tiny({"model.initial_weights=elsewhere"}).config.initial_weights == "elsewhere");
  CHECK_THAT(error_of_tiny({"model.initial_weights=\"\""}), Contains("is empty; write a folder"));
}

TEST_CASE("a checkpoint of ours describes its model by itself", "[spec][model]") {
  const TemporaryFolder folder;
  folder.write(
      "manifest.json",
      manifest_with("{\"training\": {\"steps\": 3}, \"model\": " + std::string(kQwen) + "}\n"));
  folder.write("rank-00000.safetensors", "");
  const LoadedConfig loaded = load_with_model(folder.path());
  CHECK(loaded.config.model.model_type == "qwen2");
  CHECK(loaded.config.model.vocab_size == 300);
  CHECK(loaded.config.initial_weights == folder.path());
  CHECK(loaded.config.training.steps == 10);  // the rest of its run is not this one's
}

TEST_CASE("a checkpoint of a run that started from weights is itself the start", "[spec][model]") {
  const TemporaryFolder folder;
  std::string model(kQwen);
  model.insert(1, "\"initial_weights\": \"gone\", ");
  folder.write("manifest.json", manifest_with("{\"model\": " + model + "}"));
  folder.write("rank-00000.safetensors", "");
  CHECK(load_with_model(folder.path()).config.initial_weights == folder.path());
}

TEST_CASE("folders that are no model say what they are", "[spec][model]") {
  const auto error = [](const TemporaryFolder& folder) {
    return error_of_tiny({"model=" + folder.path()});
  };
  {
    const TemporaryFolder folder;
    CHECK_THAT(error(folder), Contains("holds no config.json"));
    folder.write("checkpoints/latest", "step-00000004\n");
    folder.write("checkpoints/step-00000004/manifest.json", "{}");
    CHECK_THAT(error(folder), Contains("holds no config.json, but a run's checkpoints: name one of "
                                       "them, such as \"" +
                                       folder.path() + "/checkpoints/step-00000004\""));
  }
  {
    const TemporaryFolder folder;
    folder.write("config.json", kQwen);
    folder.write("pytorch_model-00001-of-00002.bin", "");
    CHECK_THAT(error(folder), Contains("PyTorch's pickle format, which are not read: save them as "
                                       "safetensors"));
  }
  {
    const TemporaryFolder folder;
    folder.write("manifest.json", "{\"version\": 3}");
    CHECK_THAT(error(folder), Contains("is not the manifest of a dstrain checkpoint"));
    folder.write("manifest.json", "{\"config\": ");
    CHECK_THAT(error(folder), Contains("is not the manifest of a dstrain checkpoint"));
    folder.write("manifest.json", manifest_with("{}"));
    CHECK_THAT(error(folder), Contains("does not say which model it is of"));
  }
}

}  // namespace dstrain
