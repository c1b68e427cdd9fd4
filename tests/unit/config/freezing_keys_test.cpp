// Tests of training.freeze and peft: the values they take, and those they refuse.
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/config/arch/adapters.h"
#include "tests/unit/config/parallel_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

std::string frozen_with(const std::string& patterns, std::vector<std::string> more = {}) {
  more.push_back("training.freeze=" + patterns);
  return error_of(1, more);
}

TEST_CASE("tensors that are not trained are named by patterns", "[config]") {
  const LoadedConfig loaded = load_tiny({R"(training.freeze=["embedding.*", "*.mlp.*"])"});
  const TensorPatterns& freeze = loaded.config.training.freeze;
  CHECK(freeze.patterns == std::vector<std::string>{"embedding.*", "*.mlp.*"});
  CHECK(freeze.covers("blocks.1.mlp.up.weight"));
  CHECK_FALSE(freeze.covers("blocks.1.attention.query.weight"));
  CHECK(load_tiny({"training.freeze=null"}).config.training.freeze == TensorPatterns{});
  CHECK(frozen_with(R"(["embedding.*", "blocks.[0-1].attention.*"])").empty());
  CHECK(frozen_with("[]").empty());
}

TEST_CASE("patterns that cannot be meant are refused", "[config]") {
  CHECK_THAT(error_of_tiny({"training.freeze=\"embedding.*\""}),
             Contains("must be a list of patterns of tensors' names"));
  CHECK_THAT(error_of_tiny({"training.freeze=[1]"}), Contains("found 1"));
  CHECK_THAT(error_of_tiny({"training.freeze=[\"\"]"}), Contains("must be a list of patterns"));
  CHECK_THAT(
      frozen_with(R"(["blocks.0.mpl.up.weight"])"),
      Contains("\"blocks.0.mpl.up.weight\" is the name of no tensor of the model; the nearest "
               "is \"blocks.0.mlp.up.weight\""));
  CHECK_THAT(frozen_with(R"(["*"])"), Contains("nothing would be trained"));
  CHECK_THAT(frozen_with(R"(["*.key.weight"])"),
             Contains("blocks.0.attention.query.weight would be trained and not "
                      "blocks.0.attention.key.weight, whose gradients one operation computes"));
}

TEST_CASE("what goes through all of a model goes with no frozen tensors", "[config]") {
  const std::string patterns = R"(["embedding.*"])";
  for (const char* const optimizer : {"Lamb", "Muon", "OneBitAdam"}) {
    CHECK_THAT(frozen_with(patterns, {std::string("optimizer.type=") + optimizer}),
               Contains("training.freeze: this optimizer.type goes through all of a model"));
  }
  CHECK_THAT(frozen_with(patterns, {"gradient_compression.kind=top_k"}),
             Contains("training.freeze: gradient_compression goes through all of a model"));
  CHECK_THAT(frozen_with(patterns, {"zero_optimization.stage=2",
                                    R"(zero_optimization.offload_optimizer={"device": "cpu"})"}),
             Contains("training.freeze: with states or parameters offloaded"));
}

TEST_CASE("adapters have the keys of PEFT", "[config]") {
  const LoadedConfig loaded =
      load_tiny({R"(peft={"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 16, "lora_alpha": 32,
          "target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.0, "bias": "none",
          "use_rslora": true, "modules_to_save": null, "inference_mode": true})"});
  const AdapterConfig& adapters = loaded.config.adapters;
  CHECK(adapters == AdapterConfig{.rank = 16,
                                  .alpha = 32.0,
                                  .rank_stabilised = true,
                                  .target_modules = {"q_proj", "v_proj"}});
  CHECK(adapters.scale() == 8.0);
  CHECK_FALSE(load_tiny({}).config.adapters.enabled());
  CHECK(load_tiny({R"(peft.target_modules="all-linear")"}).config.adapters.target_modules ==
        std::vector<std::string>{"all-linear"});
  CHECK(error_of(1, {R"(peft.target_modules="all-linear")"}).empty());
}

TEST_CASE("modules are trained whole beside adapters", "[config]") {
  const std::string all = R"(peft.target_modules="all-linear")";
  const auto saving = [&](const std::string& modules, std::vector<std::string> more = {}) {
    more.insert(more.end(), {all, "peft.modules_to_save=" + modules});
    return error_of(1, more);
  };
  const LoadedConfig loaded = load_tiny({all, R"(peft.modules_to_save=["lm_head", "model.norm"])"});
  CHECK(tensors_of_modules(loaded.config.model, loaded.config.adapters.modules_to_save) ==
        std::vector<std::string>{"final_norm.weight", "head.weight"});
  CHECK(tensors_of_modules(loaded.config.model, {"norm"}).size() == 3);  // and two of each block
  CHECK(saving(R"(["embed_tokens", "lm_head", "input_layernorm", "model.norm"])").empty());
  CHECK(saving("\"lm_head\"").empty());
  CHECK_THAT(saving("[\"q_proj\"]"), Contains("\"q_proj\" is a linear layer of the model's blocks: "
                                              "name it in peft.target_modules"));
  CHECK_THAT(saving("[\"lm_heat\"]"), Contains("\"lm_heat\" is no module of the model"));
  CHECK_THAT(saving("[3]"), Contains("must be names of the model's modules"));
  CHECK_THAT(saving("[\"embed_tokens\"]", {"model.tie_word_embeddings=true"}),
             Contains("the model's embedding is its head as well"));
  CHECK_THAT(saving("[\"lm_head\"]", {"model.tie_word_embeddings=true"}),
             Contains("the model has no such module of its own"));
  CHECK_THAT(error_of(1, {R"(peft.modules_to_save=["lm_head"])"}),
             Contains("peft.target_modules: missing"));
}

TEST_CASE("adapters that cannot be had are refused", "[config]") {
  const std::string all = R"(peft.target_modules="all-linear")";
  CHECK_THAT(error_of(1, {R"(peft.target_modules=["q_porj"])"}),
             Contains("\"q_porj\" is no linear layer of the model's blocks, which have q_proj, "
                      "k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"));
  CHECK_THAT(error_of_tiny({"peft.target_modules=[3]"}), Contains("found 3"));
  CHECK_THAT(error_of(1, {"peft.r=16"}), Contains("peft.target_modules: missing"));
  CHECK_THAT(error_of_tiny({all, "peft.lora_dropout=1"}), Contains("peft.lora_dropout"));
  CHECK_THAT(error_of(1, {all, "peft.use_dora=true"}),
             Contains("magnitudes begin as those of the weights"));
  CHECK_THAT(error_of_tiny({all, "peft.peft_type=\"IA3\""}), Contains("write \"LORA\""));
  CHECK_THAT(error_of_tiny({all, "peft.trainable_token_indices=[5]"}),
             Contains("adapters alone are trained"));
  CHECK_THAT(error_of(1, {all, R"(training.freeze=["embedding.*"])"}),
             Contains("with adapters everything else is frozen"));
  CHECK_THAT(error_of(1, {all, "training.mlp_tile_tokens=8", "peft.lora_dropout=0.1"}),
             Contains("which adapters with dropout do not"));
  CHECK_THAT(error_of(1, {all, "optimizer.type=Muon"}), Contains("goes through all of a model"));
}

}  // namespace
}  // namespace dstrain
