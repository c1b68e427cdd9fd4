// A model by itself, as JSON and back.
#include "engine/config/model_json.h"

#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

ModelSpec model_of(const std::vector<std::string>& overrides) {
  return load_tiny(overrides).config.model;
}

ModelSpec there_and_back(const ModelSpec& model) {
  return parse_model_spec("{\"model\": " + model_json(model) + "}", "test");
}

}  // namespace

TEST_CASE("a model's JSON describes that model", "[spec][model]") {
  const std::vector<std::vector<std::string>> variants = {
      {},
      {"model.rms_norm_eps=1e-5", "model.rope_theta=123456.75", "model.head_dim=20"},
      {"model.attention_bias=true", "model.mlp_bias=true", "model.tie_word_embeddings=true"},
      {R"(model.rope_scaling={"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
          "high_freq_factor": 4, "original_max_position_embeddings": 64})"},
      {R"(model.rope_scaling={"rope_type": "longrope", "factor": 8, "short_factor": [1.1, 2],
          "long_factor": [3.25, 4], "original_max_position_embeddings": 64})",
       "model.head_dim=4"},
      {"model.model_type=qwen2"},
      {"model.model_type=mistral", "model.initializer_range=0.01"},
      {R"(model={"model_type": "gpt2", "vocab_size": 256, "n_embd": 64, "n_layer": 2, "n_head": 4,
          "n_positions": 128, "n_inner": 100, "tie_word_embeddings": false})"},
      {R"(model={"model_type": "bloom", "vocab_size": 256, "hidden_size": 64, "n_layer": 2,
          "n_head": 4, "seq_length": 100, "tie_word_embeddings": false})"},
      {R"(model={"model_type": "baichuan", "vocab_size": 256, "hidden_size": 64,
          "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
          "model_max_length": 128, "norm_head": true})"},
      {R"(model={"model_type": "baichuan", "vocab_size": 125696, "hidden_size": 64,
          "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
          "max_position_embeddings": 128, "norm_head": false})"},
      {"model.model_type=mixtral", "model.num_local_experts=5", "model.output_router_logits=true"},
      {"model.model_type=qwen3_moe", "model.num_hidden_layers=4", "model.decoder_sparse_step=2",
       "model.mlp_only_layers=[1]", "model.moe_intermediate_size=20"},
      {"model.model_type=gpt_oss", "model.swiglu_limit=3.5"},
      {"model.model_type=deepseek_v2", "model.first_k_dense_replace=1"},
      {"model.model_type=deepseek_v2", "model.q_lora_rank=null", "model.n_group=4",
       "model.topk_group=2", "model.topk_method=group_limited_greedy", "model.n_shared_experts=1",
       R"(model.rope_scaling={"type": "yarn", "factor": 40, "mscale": 0.707,
          "mscale_all_dim": 0.707, "original_max_position_embeddings": 16})"},
      {"model.model_type=deepseek_v3", "model.n_routed_experts=16", "model.n_group=4",
       "model.topk_group=2", "model.num_experts_per_tok=3", "model.first_k_dense_replace=0",
       "model.moe_router_bias_update_rate=0.0025"},
      {"model.model_type=gpt_oss", R"(model.rope_scaling={"rope_type": "default"})"},
      {"model.model_type=olmoe", "model.norm_topk_prob=true", "model.num_experts_per_tok=3"},
  };
  for (const auto& overrides : variants) {
    const ModelSpec model = model_of(overrides);
    INFO(model_json(model));
    CHECK(there_and_back(model) == model);
  }
}

TEST_CASE("a window that sequences of a run would reach does not hinder reading a model",
          "[spec][model]") {
  const TemporaryFolder folder;
  const std::string file = folder.write("config.json", R"({"model_type": "mistral",
      "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
      "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 8192,
      "sliding_window": 16})");
  CHECK(load_model_spec(folder.path()).max_positions == 8192);
  CHECK(load_model_spec(file).num_key_value_heads == 2);
}

TEST_CASE("what describes no model is refused", "[spec][model]") {
  const auto error = [](const std::string& text) {
    return config_error_of([&] { parse_model_spec(text, "checkpoint"); });
  };
  CHECK_THAT(error("{\"training\": {}}"), Contains("checkpoint") && Contains("model: missing"));
  CHECK_THAT(error("{\"model\": {\"model_type\": \"bert\"}}"), Contains("bert"));
  CHECK_THAT(error("{\"model\": "), Contains("checkpoint"));
  const TemporaryFolder folder;
  const std::string file = folder.write("run.json", kTinyConfig);
  CHECK_THAT(config_error_of([&] { load_model_spec(file); }),
             Contains("describes a run; expected a Hugging Face model's folder or config.json"));
}

}  // namespace dstrain
