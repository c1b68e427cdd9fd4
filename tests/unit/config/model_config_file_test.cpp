// A model's config.json where a run's is expected: estimates take it as it is on the hub, runs say
// where it belongs.
#include "engine/config/model_config_file.h"

#include "engine/config/arch/model_counts.h"
#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

constexpr std::string_view kGpt2Xl = R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
  "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 1600, "n_head": 25,
  "n_layer": 48, "n_positions": 1024, "output_past": true, "resid_pdrop": 0.1,
  "summary_activation": null, "summary_first_dropout": 0.1, "summary_proj_to_labels": true,
  "summary_type": "cls_index", "summary_use_proj": true,
  "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
  "vocab_size": 50257})";

constexpr std::string_view kLlama2 = R"({
  "_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"],
  "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
  "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 4096,
  "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "tie_word_embeddings": false, "torch_dtype": "float16", "transformers_version": "4.31.0.dev0",
  "use_cache": true, "vocab_size": 32000})";

constexpr std::string_view kLlama32 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu",
  "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
  "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256})";

constexpr std::string_view kMistral = R"({
  "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0",
  "use_cache": true, "vocab_size": 32000})";

constexpr std::string_view kQwen25 = R"({
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02,
  "intermediate_size": 18944, "max_position_embeddings": 131072, "max_window_layers": 28,
  "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28,
  "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 131072, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "transformers_version": "4.40.1", "use_cache": true, "use_mrope": false,
  "use_sliding_window": false, "vocab_size": 152064})";

constexpr std::string_view kGranite = R"({
  "architectures": ["GraniteMoeForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
  "model_type": "granitemoe", "num_attention_heads": 32, "num_experts_per_tok": 2,
  "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
  "output_router_logits": false, "vocab_size": 32000})";

/// The model's folder, with weights that are not even a file of their format.
struct ModelFolder {
  explicit ModelFolder(std::string_view config_json) {
    file = folder.write("model/config.json", config_json);
    folder.write("model/model.safetensors", "weights");
    path = folder.path() + "/model";
  }
  TemporaryFolder folder;
  std::string file;
  std::string path;
};

LoadedConfig estimate(const std::string& file, const std::vector<std::string>& sets = {}) {
  return load_config(file, {.overrides = sets, .accept_model_config = true});
}

std::string estimate_error(const std::string& file, const std::vector<std::string>& sets = {}) {
  return config_error_of([&] { estimate(file, sets); });
}

}  // namespace

TEST_CASE("config.json files of the hub are models to estimate", "[spec][model]") {
  struct Published {
    std::string_view config_json;
    std::int64_t parameters;  // as counted from the published weights
    std::int64_t sequence_length;
  };
  for (const Published& model : {Published{kGpt2Xl, 1'557'611'200, 1024},
                                 {kLlama2, 6'738'415'616, 2048},
                                 {kLlama32, 1'235'814'400, 2048},
                                 {kMistral, 7'241'732'096, 2048},
                                 {kQwen25, 7'615'616'512, 2048}}) {
    const ModelFolder folder(model.config_json);
    for (const std::string& given : {folder.path, folder.path + "/", folder.file}) {
      LoadedConfig loaded = estimate(given);
      INFO(given);
      CHECK(num_parameters(loaded.config.model) == model.parameters);
      CHECK(loaded.config.data.sequence_length == model.sequence_length);
      CHECK(loaded.config.precision == Precision::kBF16);
      CHECK(loaded.config.optimizer.kind == OptimizerKind::kAdamW);
      resolve_config(loaded, 8);
      CHECK(loaded.config.batch.train_batch_size == 8);
      CHECK(loaded.config.batch.micro_batch_size == 1);
    }
  }
}

TEST_CASE("stand-in values are reported in one notice and in the origins", "[spec][model]") {
  const ModelFolder llama(kLlama2);
  const LoadedConfig loaded = estimate(llama.path);
  REQUIRE(loaded.notices.size() == 1);
  CHECK(loaded.notices[0] ==
        llama.file +
            ": describes a model and not a run; stand-ins for the missing keys, which --set "
            "KEY=VALUE replaces: train_micro_batch_size_per_gpu=1 (the smallest), "
            "data.sequence_length=2048 (the model has 4096 positions), bf16.enabled=true (the "
            "usual precision), optimizer.type=\"AdamW\" (the usual optimizer), "
            "data.train=\"stand-in\" (no effect on memory), training.steps=1 (no effect on "
            "memory)");
  CHECK(origin_of(loaded, "data.sequence_length") == "stand-in: the model has 4096 positions");
  CHECK(origin_of(loaded, "optimizer.type") == "stand-in: the usual optimizer");
  CHECK_THAT(origin_of(loaded, "model.hidden_size"), Catch::StartsWith(llama.file + ":"));
  CHECK(loaded.file == llama.path);
}

TEST_CASE("what --set says needs no stand-in", "[spec][model]") {
  const ModelFolder llama(kLlama2);
  const LoadedConfig loaded =
      estimate(llama.path, {"train_batch_size=32", "data.sequence_length=4096", "fp16.enabled=true",
                            "optimizer.type=Lion", "model.num_hidden_layers=2", "data.train=tokens",
                            "training.steps=7"});
  CHECK(loaded.config.data.sequence_length == 4096);
  CHECK(loaded.config.precision == Precision::kF16);
  CHECK(loaded.config.optimizer.kind == OptimizerKind::kLion);
  CHECK(loaded.config.model.num_layers == 2);
  CHECK_FALSE(loaded.config.batch.micro_batch_size.has_value());
  CHECK_THAT(loaded.notices.at(0), Catch::EndsWith("replaces: none"));
  CHECK(estimate(llama.path, {"bf16.enabled=false"}).config.precision == Precision::kF32);
  CHECK(estimate(llama.path, {"data.sequence_length=auto"}).config.data.sequence_length == 4096);
}

TEST_CASE("an estimate takes a run's file as it takes it to be launched", "[spec][model]") {
  const TemporaryFolder folder;
  const std::string file = folder.write("run.json", kTinyConfig);
  CHECK(estimate(file).config == load_config(file, {}).config);
  CHECK(estimate(file).notices.empty());
  CHECK_THAT(estimate_error(file, {"data=null"}), Contains("data.train: missing"));
  // Only a run would start from the weights.
  const ModelFolder llama(kLlama2);
  CHECK(estimate(file, {"model=" + llama.path}).config.model.hidden_size == 4096);
  CHECK(estimate(file, {"model=" + llama.path}).config.initial_weights.empty());
  CHECK(load_config(file, {.overrides = {"model=" + llama.path}}).config.initial_weights ==
        llama.path);
}

TEST_CASE("a run is not started from a model's config.json", "[spec][model]") {
  const ModelFolder llama(kLlama2);
  const auto launch_error = [](const std::string& file) {
    return config_error_of([&] { load_config(file, {}); });
  };
  const std::string fix =
      ", which says nothing about data, batch and steps: write a run's file with "
      "\"model\": \"" +
      llama.path +
      "\", or estimate what the model takes with "
      "dstrain estimate-memory";
  CHECK(launch_error(llama.file) == llama.file + ": is a model's config.json" + fix);
  CHECK(launch_error(llama.path) == llama.path + ": is a model's folder" + fix);
  // A run's file with a stray key is still a run's.
  CHECK_THAT(error_of_text(R"({"model_type": "llama", "training": {"steps": 3}})"),
             Contains("model_type: unknown key, it belongs at \"model.model_type\""));
  const TemporaryFolder folder;
  folder.write("config.json", kTinyConfig);
  CHECK(launch_error(folder.path()) == folder.path() + ": is a folder; expected a JSON file");
  CHECK(estimate(folder.path()).config.model.hidden_size == 64);
}

TEST_CASE("what is no model says what is expected", "[spec][model]") {
  const TemporaryFolder folder;
  CHECK(estimate_error(folder.path()) ==
        folder.path() +
            ": is a folder without a config.json; expected a run's JSON file, or a Hugging Face "
            "model's folder or config.json");
  const ModelFolder nameless(R"({"hidden_size": 64})");
  CHECK_THAT(estimate_error(nameless.path), Contains("model.model_type: missing: write"));
  const ModelFolder typo(R"({"model_type": "llama", "hiden_size": 64})");
  CHECK_THAT(estimate_error(typo.path),
             Contains("config.json:1:25: model.hiden_size: unknown key, did you mean "
                      "\"hidden_size\"?"));
}

TEST_CASE("other architectures are told from slips of the pen", "[spec][model]") {
  const std::string trained =
      "\"gpt2\", \"llama\", \"mistral\", \"ministral\", \"qwen2\", \"qwen3\", \"olmo2\", "
      "\"olmo3\", "
      "\"smollm3\", \"phi3\", \"starcoder2\", \"gemma2\", \"gemma3_text\", \"gpt_neox\", "
      "\"opt\", \"bloom\", \"baichuan\", \"mixtral\", \"qwen3_moe\", \"olmoe\", "
      "\"gpt_oss\", \"deepseek_v2\" and \"deepseek_v3\"";
  const ModelFolder granite(kGranite);
  CHECK(estimate_error(granite.path) ==
        granite.file +
            ":3:17: model.model_type: \"granitemoe\" (a mixture of experts) is not in this "
            "version, which trains " +
            trained);
  CHECK(error_of_tiny({"model={\"model_type\": \"gemma3\", \"text_config\": {}}"}) ==
        "--set model={\"model_type\": \"gemma3\", \"text_config\": {}}: "
        "model.model_type: \"gemma3\" (reads images too; its text model is \"gemma3_text\", whose "
        "keys are in its text_config) is not in this version, which trains " +
            trained);
  CHECK(error_of_tiny({"model.model_type=lama"}) ==
        "--set model.model_type=lama: model.model_type: \"lama\" is not in this version, which "
        "trains " +
            trained + "; did you mean \"llama\"?");
  CHECK(error_of_tiny({"model.model_type=zamba"}) ==
        "--set model.model_type=zamba: model.model_type: \"zamba\" is not in this version, which "
        "trains " +
            trained);
  CHECK_THAT(error_of_tiny({"model.model_type=7"}), Contains("must be \"gpt2\", \"llama\""));
}

}  // namespace dstrain
