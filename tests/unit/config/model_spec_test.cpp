// Parameters and FLOPs against published counts; config.json files as they are on the hub.
#include "engine/config/model_spec.h"

#include "kernels/math/activation.h"
#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

/// kTinyConfig's run around another model; sequences of `sequence_length` tokens.
ModelSpec read_model(std::string_view config_json, int sequence_length = 16) {
  return load_tiny({"model=" + std::string(config_json),
                    "data.sequence_length=" + std::to_string(sequence_length)})
      .config.model;
}

std::string model_error(std::string_view config_json, int sequence_length = 16) {
  return error_of_tiny({"model=" + std::string(config_json),
                        "data.sequence_length=" + std::to_string(sequence_length)});
}

constexpr std::string_view kGpt2 = R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
  "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
  "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null,
  "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
  "summary_use_proj": true, "task_specific_params": {"text-generation": {"max_length": 50}},
  "vocab_size": 50257})";

constexpr std::string_view kLlama2 = R"({
  "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
  "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008,
  "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32,
  "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": null, "tie_word_embeddings": false, "torch_dtype": "float16",
  "transformers_version": "4.31.0", "use_cache": true, "vocab_size": 32000})";

constexpr std::string_view kLlama31 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu",
  "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
  "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
  "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "vocab_size": 128256})";

constexpr std::string_view kQwen2 = R"({
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
  "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
  "intermediate_size": 4864, "max_position_embeddings": 131072, "max_window_layers": 24,
  "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 131072, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";

constexpr std::string_view kMistral = R"({
  "architectures": ["MistralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
  "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
  "tie_word_embeddings": false, "vocab_size": 32000})";

}  // namespace

TEST_CASE("parameter counts are the published ones", "[spec][model]") {
  CHECK(read_model(kGpt2).num_parameters() == 124'439'808);
  CHECK(read_model(kLlama2).num_parameters() == 6'738'415'616);
  CHECK(read_model(kLlama31).num_parameters() == 8'030'261'248);
  CHECK(read_model(kQwen2).num_parameters() == 494'032'768);
  CHECK(read_model(kMistral).num_parameters() == 7'241'732'096);
}

TEST_CASE("flops are six per matmul weight plus causal attention", "[spec][model]") {
  const ModelSpec gpt2 = read_model(kGpt2);
  // 12 blocks of 12·768² weights and the head, by hand; embeddings, norms and biases not counted.
  const double weights = 12.0 * 12 * 768 * 768 + 50257.0 * 768;
  const double attention = 12.0 * 12 * 12 * 64 * 1024 / 2;
  CHECK(gpt2.flops_per_token(1024) == Approx(6 * weights + attention).epsilon(1e-12));
}

TEST_CASE("a GPT-2 config sets the architecture of GPT-2", "[spec][model]") {
  const ModelSpec m = read_model(kGpt2);
  CHECK(m.norm == NormKind::kLayerNorm);
  CHECK(m.position == PositionKind::kLearned);
  CHECK(m.activation == ActivationKind::kGeluTanh);
  CHECK_FALSE(m.gated_mlp);
  CHECK((m.qkv_bias && m.attention_output_bias && m.mlp_bias));
  CHECK((m.tied_embeddings && m.scaled_residual_init));
  CHECK(m.head_dim == 64);
  CHECK(m.num_key_value_heads == 12);
  CHECK(m.intermediate_size == 3072);
  CHECK(m.norm_epsilon == 1e-5F);
}

TEST_CASE("LLaMA, Mistral and Qwen2 differ where they should", "[spec][model]") {
  const ModelSpec llama = read_model(kLlama31);
  CHECK(llama.norm == NormKind::kRmsNorm);
  CHECK(llama.gated_mlp);
  CHECK_FALSE((llama.qkv_bias || llama.attention_output_bias || llama.mlp_bias));
  CHECK_FALSE((llama.tied_embeddings || llama.scaled_residual_init));
  CHECK(llama.rope_theta == 500000.0);
  CHECK(llama.rope_scaling.factor == 8.0);
  CHECK(llama.rope_scaling.original_max_positions == 8192);
  CHECK(read_model(kLlama2).rope_scaling.factor == 1.0);
  const ModelSpec qwen = read_model(kQwen2);
  CHECK(qwen.qkv_bias);
  CHECK_FALSE(qwen.attention_output_bias);
  CHECK(qwen.tied_embeddings);
  CHECK(qwen.norm_epsilon == 1e-6F);
  CHECK_FALSE(read_model(kMistral).qkv_bias);
}

TEST_CASE("rope_parameters says the same as rope_theta and rope_scaling", "[spec][model]") {
  const std::string old_keys =
      R"("rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0)";
  std::string newer(kLlama31);
  const auto at = newer.find(old_keys);
  REQUIRE(at != std::string::npos);
  newer.replace(at, old_keys.size(),
                R"("rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
      "dtype": "bfloat16")");
  CHECK(read_model(newer) == read_model(kLlama31));

  const LoadedConfig loaded = load_tiny({"model.rope_parameters={\"rope_theta\": 7}"});
  CHECK(loaded.config.model.rope_theta == 7.0);
  CHECK(origin_of(loaded, "model.rope_theta") == "derived: rope_parameters");
  CHECK_THAT(error_of_tiny({"model.rope_parameters={\"rope_theta\": 7}", "model.rope_theta=8"}),
             Catch::Contains("model.rope_theta: 8 contradicts rope_parameters.rope_theta 7"));
  for (const char* const number : {"0", "-1", "1e308"}) {
    CHECK_THAT(
        error_of_tiny({"model.rope_parameters={\"rope_theta\": " + std::string(number) + "}"}),
        Catch::Contains("must be a number greater than 0 and at most 1e+12"));
  }
}

TEST_CASE("null leaves a size to be derived", "[spec][model]") {
  const LoadedConfig loaded = load_tiny({"model.num_key_value_heads=null", "model.head_dim=null"});
  CHECK(loaded.config.model.num_key_value_heads == 4);
  CHECK(loaded.config.model.head_dim == 16);
  CHECK(origin_of(loaded, "model.num_key_value_heads") == "derived: num_attention_heads");
}

TEST_CASE("GPT-2 is accepted under the common names too", "[spec][model]") {
  const ModelSpec m = read_model(R"({"model_type": "gpt2", "vocab_size": 256, "hidden_size": 32,
      "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64})");
  CHECK(m.hidden_size == 32);
  CHECK(m.max_positions == 64);
  CHECK_THAT(
      model_error(R"({"model_type": "gpt2", "vocab_size": 256, "hidden_size": 32, "n_embd": 64,
      "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64})"),
      Catch::Contains("given twice"));
}

TEST_CASE("dropout is accepted with a notice", "[spec][model]") {
  const LoadedConfig loaded = load_tiny({"model=" + std::string(kGpt2), "data.sequence_length=16"});
  REQUIRE(loaded.notices.size() == 1);
  CHECK(loaded.notices[0] ==
        "no effect: model.resid_pdrop, model.embd_pdrop, model.attn_pdrop: dstrain trains without "
        "dropout");
  CHECK(load_tiny({"model.attention_dropout=0.0"}).notices.empty());
}

TEST_CASE("a model that cannot be built is refused with the key", "[spec][model]") {
  CHECK_THAT(error_of_tiny({"model.num_attention_heads=5"}),
             Catch::Contains("model.num_attention_heads: 5 heads do not divide hidden_size 64"));
  CHECK_THAT(error_of_tiny({"model.num_key_value_heads=3"}),
             Catch::Contains("model.num_key_value_heads: 3 does not divide num_attention_heads 4"));
  CHECK_THAT(error_of_tiny({"model.head_dim=15"}),
             Catch::Contains("rotary positions need an even head size, this is 15"));
  CHECK_THAT(error_of_tiny({"model.hidden_act=gelu"}),
             Catch::Contains("model.hidden_act: \"gelu\" is refused"));
  CHECK_THAT(error_of_tiny({"model.rope_scaling={\"type\": \"yarn\", \"factor\": 4}"}),
             Catch::Contains("rope_type \"yarn\" is not in this version yet"));
  CHECK_THAT(error_of_tiny({"model.rope_scaling={\"type\": \"llama3\", \"factor\": 4}"}),
             Catch::Contains("\"low_freq_factor\" is missing"));
  CHECK_THAT(error_of_tiny({"model.model_type=mixtral"}), Catch::Contains("model.model_type"));
  CHECK_THAT(error_of_tiny({"data.sequence_length=129"}),
             Catch::Contains("129 is longer than the 128 positions of the model"));
  CHECK_THAT(error_of_tiny({"model.n_embd=64"}),
             Catch::Contains("has no meaning for model_type \"llama\": it belongs to gpt2"));
  std::string gpt2(kGpt2);
  gpt2.insert(1, "\"scale_attn_by_inverse_layer_idx\": true, ");
  CHECK_THAT(model_error(gpt2),
             Catch::Contains("scale_attn_by_inverse_layer_idx: true is refused"));
  CHECK_THAT(model_error(R"({"model_type": "mistral", "vocab_size": 256, "hidden_size": 64,
      "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
      "max_position_embeddings": 64})"),
             Catch::Contains("model.num_key_value_heads: missing"));
}

TEST_CASE("a sliding window is refused where it would bite", "[spec][model]") {
  CHECK(model_error(kMistral, 4096).empty());
  CHECK_THAT(model_error(kMistral, 4097),
             Catch::Contains("a window of 4096 positions would cut sequences of 4097"));
  std::string qwen(kQwen2);
  CHECK(model_error(qwen, 131072).empty());
  const std::string off = "\"use_sliding_window\": false";
  qwen.replace(qwen.find(off), off.size(), "\"use_sliding_window\": true");
  const std::string wide = "\"sliding_window\": 131072";
  qwen.replace(qwen.find(wide), wide.size(), "\"sliding_window\": 8");
  CHECK(model_error(qwen).empty());  // max_window_layers 24: no layer has the window
  const std::string layers = "\"max_window_layers\": 24";
  qwen.replace(qwen.find(layers), layers.size(), "\"max_window_layers\": 12");
  CHECK_THAT(model_error(qwen), Catch::Contains("set use_sliding_window to false"));
}

TEST_CASE("a folder with a config.json is a model", "[spec][model]") {
  const TemporaryFolder folder;
  const std::string file = folder.write("llama/config.json", kLlama2);
  const std::string set = "model=" + folder.path() + "/llama";
  const LoadedConfig loaded = load_tiny({set, "model.num_hidden_layers=2"});
  CHECK(loaded.config.model.hidden_size == 4096);
  CHECK(loaded.config.model.num_layers == 2);
  CHECK(origin_of(loaded, "model.vocab_size") == file + ":7:70");
  CHECK(origin_of(loaded, "model.num_hidden_layers") == "--set");

  CHECK_THAT(error_of_tiny({"model=/nowhere"}),
             Catch::Contains("model: there is no folder \"/nowhere\""));
  CHECK_THAT(error_of_tiny({"model=" + folder.path()}), Catch::Contains("holds no config.json"));
}

}  // namespace dstrain
