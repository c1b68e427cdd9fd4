// Parameters and FLOPs against published counts; config.json files as they are on the hub.
#include "engine/config/model_spec.h"

#include "engine/config/arch/architecture.h"
#include "engine/config/arch/model_counts.h"
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

constexpr std::string_view kGpt2Small = R"({
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

/// The models' files from Hugging Face, without keys that have no effect.
constexpr std::string_view kGemma2 = R"({
  "architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid",
  "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
  "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02,
  "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2",
  "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4,
  "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
  "sliding_window": 4096, "torch_dtype": "float32", "use_cache": true, "vocab_size": 256000})";

constexpr std::string_view kGemma3 = R"({
  "architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "attn_logit_softcapping": null, "cache_implementation": "hybrid",
  "final_logit_softcapping": null, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
  "hidden_size": 1152, "initializer_range": 0.02, "intermediate_size": 6912,
  "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
  "num_hidden_layers": 26, "num_key_value_heads": 1, "query_pre_attn_scalar": 256,
  "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": null,
  "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
  "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 262144})";

constexpr std::string_view kPythia = R"({
  "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0,
  "hidden_act": "gelu", "hidden_size": 512, "initializer_range": 0.02, "intermediate_size": 2048,
  "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "model_type": "gpt_neox",
  "num_attention_heads": 8, "num_hidden_layers": 6, "rotary_emb_base": 10000, "rotary_pct": 0.25,
  "tie_word_embeddings": false, "torch_dtype": "float16", "use_cache": true,
  "use_parallel_residual": true, "vocab_size": 50304})";

constexpr std::string_view kOpt = R"({
  "_name_or_path": "facebook/opt-125m", "activation_dropout": 0.0, "activation_function": "relu",
  "architectures": ["OPTForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 2,
  "do_layer_norm_before": true, "dropout": 0.0, "eos_token_id": 2, "ffn_dim": 3072,
  "hidden_size": 768, "init_std": 0.02, "layerdrop": 0.0, "max_position_embeddings": 2048,
  "model_type": "opt", "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1,
  "prefix": "</s>", "torch_dtype": "float16", "use_cache": true, "vocab_size": 50272,
  "word_embed_proj_dim": 768})";

constexpr std::string_view kBloom = R"({
  "apply_residual_connection_post_layernorm": false, "attention_dropout": 0.0,
  "architectures": ["BloomForCausalLM"], "attention_softmax_in_fp32": true,
  "bias_dropout_fusion": true, "bos_token_id": 1, "eos_token_id": 2, "hidden_dropout": 0.0,
  "hidden_size": 1024, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
  "masked_softmax_fusion": true, "model_type": "bloom", "n_head": 16, "n_inner": null,
  "n_layer": 24, "offset_alibi": 100, "pad_token_id": 3, "pretraining_tp": 1,
  "skip_bias_add": true, "skip_bias_add_qkv": false, "slow_but_exact": false,
  "unk_token_id": 0, "use_cache": true, "vocab_size": 250880})";

constexpr std::string_view kBaichuan7B = R"({
  "architectures": ["BaiChuanForCausalLM"],
  "auto_map": {"AutoConfig": "configuration_baichuan.BaiChuanConfig",
               "AutoModelForCausalLM": "modeling_baichuan.BaiChuanForCausalLM"},
  "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
  "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 4096,
  "model_type": "baichuan", "num_attention_heads": 32, "num_hidden_layers": 32,
  "pad_token_id": 0, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 64000})";

constexpr std::string_view kBaichuan13B = R"({
  "_from_model_config": true, "architectures": ["BaichuanForCausalLM"], "bos_token_id": 1,
  "eos_token_id": 2, "gradient_checkpointing": false, "hidden_act": "silu", "hidden_size": 5120,
  "initializer_range": 0.02, "intermediate_size": 13696, "model_max_length": 4096,
  "model_type": "baichuan", "num_attention_heads": 40, "num_hidden_layers": 40,
  "pad_token_id": 0, "rms_norm_eps": 1e-06, "torch_dtype": "bfloat16", "use_cache": true,
  "vocab_size": 64000})";

constexpr std::string_view kMixtral = R"({
  "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
  "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
  "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral",
  "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false,
  "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
  "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "use_cache": true, "vocab_size": 32000})";

constexpr std::string_view kQwen3Moe = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
  "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144,
  "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
  "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true,
  "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
  "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0,
  "router_aux_loss_coef": 0.001, "sliding_window": null, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "use_cache": true, "use_sliding_window": false,
  "vocab_size": 151936})";

constexpr std::string_view kOlmoe = R"({
  "architectures": ["OlmoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "clip_qkv": null, "eos_token_id": 50279, "hidden_act": "silu", "hidden_size": 2048,
  "initializer_range": 0.02, "intermediate_size": 1024, "max_position_embeddings": 4096,
  "model_type": "olmoe", "norm_topk_prob": false, "num_attention_heads": 16, "num_experts": 64,
  "num_experts_per_tok": 8, "num_hidden_layers": 16, "num_key_value_heads": 16,
  "output_router_logits": false, "pad_token_id": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": null, "rope_theta": 10000.0, "router_aux_loss_coef": 0.01,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true,
  "vocab_size": 50304})";

/// gpt-oss-20b without its four-bit weights.
constexpr std::string_view kGptOss = R"({
  "architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
  "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
  "hidden_size": 2880, "initial_context_length": 4096, "initializer_range": 0.02,
  "intermediate_size": 2880, "max_position_embeddings": 131072, "model_type": "gpt_oss",
  "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
  "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": false,
  "pad_token_id": 199999, "rms_norm_eps": 1e-05,
  "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
                   "original_max_position_embeddings": 4096, "rope_type": "yarn",
                   "truncate": false},
  "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128,
  "swiglu_limit": 7.0, "tie_word_embeddings": false, "use_cache": true, "vocab_size": 201088})";

}  // namespace

TEST_CASE("parameter counts are the published ones", "[spec][model]") {
  CHECK(num_parameters(read_model(kGpt2Small)) == 124'439'808);
  CHECK(num_parameters(read_model(kLlama2)) == 6'738'415'616);
  CHECK(num_parameters(read_model(kLlama31)) == 8'030'261'248);
  CHECK(num_parameters(read_model(kQwen2)) == 494'032'768);
  CHECK(num_parameters(read_model(kMistral)) == 7'241'732'096);
  CHECK(num_parameters(read_model(kGemma2)) == 2'614'341'888);
  CHECK(num_parameters(read_model(kGemma3)) == 999'885'952);
  CHECK(num_parameters(read_model(kPythia)) == 70'426'624);
  CHECK(num_parameters(read_model(kOpt)) == 125'239'296);
  CHECK(num_parameters(read_model(kBloom)) == 559'214'592);
  CHECK(num_parameters(read_model(kBaichuan7B)) == 7'000'559'616);
  CHECK(num_parameters(read_model(kBaichuan13B)) == 13'264'901'120);
  CHECK(num_parameters(read_model(kMixtral)) == 46'702'792'704);
  CHECK(num_parameters(read_model(kQwen3Moe)) == 30'532'122'624);
  CHECK(num_parameters(read_model(kOlmoe)) == 6'919'161'856);
  CHECK(num_parameters(read_model(kGptOss)) == 20'914'757'184);
}

TEST_CASE("a token's parameters are the published ones", "[spec][model]") {
  CHECK(active_parameters(read_model(kMixtral)) == 12'879'925'248);
  CHECK(active_parameters(read_model(kQwen3Moe)) == 3'353'032'704);
  CHECK(active_parameters(read_model(kOlmoe)) == 1'282'017'280);
  CHECK(active_parameters(read_model(kGptOss)) == 4'187'440'704);
}

TEST_CASE("flops are six per matmul weight plus causal attention", "[spec][model]") {
  const ModelSpec gpt2 = read_model(kGpt2Small);
  // 12 blocks of 12·768² weights and the head, by hand; embeddings, norms and biases not counted.
  const double weights = 12.0 * 12 * 768 * 768 + 50257.0 * 768;
  const double attention = 12.0 * 12 * 12 * 64 * 1024 / 2;
  CHECK(flops_per_token(gpt2, 1024) == Approx(6 * weights + attention).epsilon(1e-12));
}

TEST_CASE("a GPT-2 config sets the architecture of GPT-2", "[spec][model]") {
  const ModelSpec m = read_model(kGpt2Small);
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

TEST_CASE("dropout is what a family's keys say", "[spec][model]") {
  const LoadedConfig gpt2 =
      load_tiny({"model=" + std::string(kGpt2Small), "data.sequence_length=16"});
  CHECK(gpt2.notices.empty());
  CHECK(gpt2.config.dropout ==
        DropoutConfig{.embedding = 0.1F, .residual = 0.1F, .attention = 0.1F});
  const LoadedConfig llama = load_tiny({"model.attention_dropout=0.25"});
  CHECK(llama.config.dropout == DropoutConfig{.attention = 0.25F});
  CHECK_FALSE(load_tiny({}).config.dropout.any());
  CHECK_THAT(to_json(llama), Catch::Contains("\"attention_dropout\": 0.25"));
  CHECK_THAT(error_of_tiny({"model.attention_dropout=1"}),
             Catch::Contains("model.attention_dropout"));
}

TEST_CASE("a model that cannot be built is refused with the key", "[spec][model]") {
  CHECK_THAT(error_of_tiny({"model.num_attention_heads=5"}),
             Catch::Contains("model.num_attention_heads: 5 heads do not divide hidden_size 64"));
  CHECK_THAT(error_of_tiny({"model.num_key_value_heads=3"}),
             Catch::Contains("model.num_key_value_heads: 3 does not divide num_attention_heads 4"));
  CHECK_THAT(error_of_tiny({"model.head_dim=15"}),
             Catch::Contains("rotary positions need an even head size, found 15"));
  CHECK_THAT(error_of_tiny({"model.hidden_act=mish"}),
             Catch::Contains("model.hidden_act: must be \"silu\", \"swish\", "));
  CHECK_THAT(error_of_tiny({"model.rope_scaling={\"type\": \"dynamic\", \"factor\": 4}"}),
             Catch::Contains("rope_type \"dynamic\" is not in this version yet"));
  CHECK_THAT(error_of_tiny({"model.rope_scaling={\"type\": \"yarn\", \"factor\": 4}"}),
             Catch::Contains("\"original_max_position_embeddings\" is missing"));
  CHECK_THAT(error_of_tiny({"model.rope_scaling={\"type\": \"llama3\", \"factor\": 4}"}),
             Catch::Contains("\"low_freq_factor\" is missing"));
  CHECK_THAT(error_of_tiny({"model.model_type=dbrx"}), Catch::Contains("model.model_type"));
  CHECK_THAT(error_of_tiny({"data.sequence_length=129"}),
             Catch::Contains("129 is longer than the 128 positions of the model"));
  CHECK_THAT(error_of_tiny({"model.n_embd=64"}),
             Catch::Contains("has no meaning for model_type \"llama\": it belongs to gpt2"));
  std::string gpt2(kGpt2Small);
  gpt2.insert(1, "\"scale_attn_by_inverse_layer_idx\": true, ");
  CHECK_THAT(model_error(gpt2),
             Catch::Contains("scale_attn_by_inverse_layer_idx: true is refused"));
  CHECK_THAT(model_error(R"({"model_type": "mistral", "vocab_size": 256, "hidden_size": 64,
      "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
      "max_position_embeddings": 64})"),
             Catch::Contains("model.num_key_value_heads: missing"));
}

TEST_CASE("a family without windows has none, however long the sequence", "[spec][model]") {
  CHECK(load_tiny({}).config.model.attention_window == 0);
  CHECK(load_tiny({"model.model_type=\"olmo2\""}).config.model.attention_window == 0);
  CHECK(load_tiny({"model.model_type=\"mistral\""}).config.model.attention_window > 0);
}

TEST_CASE("layers have the windows that the keys of their family say", "[spec][model]") {
  CHECK(read_model(kMistral).window_of_layer(0) == 4096);
  std::string qwen(kQwen2);
  CHECK(read_model(qwen).attention_window == 0);
  const std::string off = "\"use_sliding_window\": false";
  qwen.replace(qwen.find(off), off.size(), "\"use_sliding_window\": true");
  CHECK(read_model(qwen).attention_window == 0);  // max_window_layers 24: no layer has it
  const std::string layers = "\"max_window_layers\": 24";
  qwen.replace(qwen.find(layers), layers.size(), "\"max_window_layers\": 12");
  CHECK(read_model(qwen).window_of_layer(11) == 0);
  CHECK(read_model(qwen).window_of_layer(12) == 131072);

  const std::vector<std::string> olmo3 = {"model.model_type=olmo3", "model.num_hidden_layers=5",
                                          "model.sliding_window=8"};
  const auto windows = [](const std::vector<std::string>& overrides) {
    const ModelSpec model = load_tiny(overrides).config.model;
    std::vector<std::int64_t> of_layers;
    for (std::int64_t layer = 0; layer < model.num_layers; ++layer)
      of_layers.push_back(model.window_of_layer(layer));
    return of_layers;
  };
  using Windows = std::vector<std::int64_t>;
  CHECK(windows(olmo3) == Windows{8, 8, 8, 0, 8});
  const auto with = [](std::vector<std::string> overrides, const std::string& more) {
    overrides.push_back(more);
    return overrides;
  };
  CHECK(windows(with(olmo3, "model.sliding_window=null")) == Windows{0, 0, 0, 0, 0});
  const std::string types = R"(model.layer_types=["full_attention", "sliding_attention")";
  CHECK_THAT(error_of_tiny(with(olmo3, types + "]")),
             Catch::Contains("model.layer_types: names 2 layers, but there are 5"));
  CHECK(windows(with(with(olmo3, "model.num_hidden_layers=2"), types + "]")) == Windows{0, 8});
}

TEST_CASE("Gemma's caps, scales, windows and rotations are those of its keys", "[spec][model]") {
  const Architecture two(read_model(kGemma2));
  CHECK(two.logit_cap == 30.0F);
  CHECK(two.embedding_scale == 48.0F);
  CHECK(two.layers[0].attention.cap == 50.0F);
  CHECK(two.layers[0].attention.scale == 0.0F);  // the head's own
  CHECK((two.layers[0].attention.window == 4096 && two.layers[1].attention.window == 0));
  CHECK(two.layers[0].norm_placement == NormPlacement::kAroundBranch);
  CHECK(two.layers[0].attention.rotary == two.layers[1].attention.rotary);
  const std::vector<std::string> small = {"model.model_type=gemma2"};
  const auto with = [](std::vector<std::string> overrides, const std::string& more) {
    overrides.push_back(more);
    return Architecture(load_tiny(overrides).config.model);
  };
  CHECK(with(small, "model.query_pre_attn_scalar=64").layers[0].attention.scale == 0.125F);
  CHECK(with(small, "model.attn_logit_softcapping=null").layers[0].attention.cap == 0.0F);
  CHECK_THAT(error_of_tiny({"model.model_type=gemma2", "model.final_logit_softcapping=true"}),
             Catch::Contains("must be null or a number above 0 and below 1e30, found true"));
  CHECK_THAT(error_of_tiny({"model.model_type=gemma2", "model.final_logit_softcapping=0"}),
             Catch::Contains("must be null or a number above 0 and below 1e30, found 0"));

  const Architecture three(read_model(kGemma3));
  CHECK(three.logit_cap == 0.0F);
  CHECK((three.layers[4].attention.window == 512 && three.layers[5].attention.window == 0));
  CHECK(three.layers[4].attention.rotary->theta == 10000.0);
  CHECK(three.layers[5].attention.rotary->theta == 1000000.0);
  CHECK(three.layers[5].attention.query_key_norm == QueryKeyNorm::kPerHead);
  const std::string three_layers = R"(model={"model_type": "gemma3_text", "num_hidden_layers": 3,
      "sliding_window_pattern": 3, "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
      "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
      "max_position_embeddings": 64, "sliding_window": 8, "rope_parameters": {)";
  const Architecture both(
      load_tiny({three_layers + R"("full_attention": {"rope_theta": 5e5, "rope_type": "linear",
          "factor": 8}, "sliding_attention": {"rope_theta": 700, "rope_type": "default"}}})"})
          .config.model);
  CHECK(both.layers[1].attention.rotary == RotarySpec{.dims = 16, .theta = 700.0});
  CHECK(both.layers[2].attention.rotary->theta == 5e5);
  CHECK(both.layers[2].attention.rotary->scaling.factor == 8.0);
  CHECK_THAT(error_of_tiny({"model.model_type=gemma3_text", "model.sliding_window=null"}),
             Catch::Contains("model.sliding_window: must be a number of positions"));
}

TEST_CASE("Pythia's halves stand side by side unless its keys say otherwise", "[spec][model]") {
  const Architecture pythia(read_model(kPythia));
  CHECK(pythia.layers[0].parallel_branches);
  CHECK(pythia.layers[0].attention.rotary->dims == 16);
  CHECK(pythia.layers[0].attention.key_value_heads == 8);
  CHECK(pythia.layers[0].feed_forward.activation == ActivationKind::kGelu);
  std::string other(kPythia);
  const std::string on = "\"use_parallel_residual\": true";
  other.replace(other.find(on), on.size(), "\"use_parallel_residual\": false");
  CHECK_FALSE(Architecture(read_model(other)).layers[0].parallel_branches);
  CHECK_THAT(error_of_tiny({"model.model_type=gpt_neox", "model.num_key_value_heads=1"}),
             Catch::Contains("model.num_key_value_heads"));
}

TEST_CASE("OPT's positions begin at the third row of their table", "[spec][model]") {
  const Architecture opt(read_model(kOpt));
  CHECK(opt.learned_positions == 2050);
  CHECK(opt.first_position == 2);
  CHECK_FALSE(opt.layers[0].attention.rotary);
  CHECK(opt.layers[0].feed_forward.activation == ActivationKind::kRelu);
  const auto changed = [](const std::string& from, const std::string& to) {
    std::string text(kOpt);
    text.replace(text.find(from), from.size(), to);
    return config_error_of([&] { (void)read_model(text); });
  };
  CHECK_THAT(changed("\"word_embed_proj_dim\": 768", "\"word_embed_proj_dim\": 512"),
             Catch::Contains("model.word_embed_proj_dim: 512 is not hidden_size 768"));
  CHECK_THAT(changed("\"do_layer_norm_before\": true", "\"do_layer_norm_before\": false"),
             Catch::Contains("opt-350m"));
}

TEST_CASE("BLOOM's scores fall with distance and its embedding is normalised", "[spec][model]") {
  const Architecture bloom(read_model(kBloom));
  CHECK(bloom.layers[0].attention.falls);
  CHECK_FALSE(bloom.layers[0].attention.rotary);
  CHECK(bloom.embedding_norm);
  CHECK(bloom.learned_positions == 0);
  CHECK(bloom.layers[0].feed_forward.width == 4096);
  CHECK(read_model(kBloom).max_positions == 2048);
  std::string older(kBloom);
  for (const auto& [from, to] : {std::pair("\"hidden_size\"", "\"n_embed\""),
                                 {"\"n_head\"", "\"num_attention_heads\""},
                                 {"\"n_layer\"", "\"num_hidden_layers\""}}) {
    older.replace(older.find(from), std::string_view(from).size(), to);
  }
  CHECK(read_model(older) == read_model(kBloom));
  std::string other(kBloom);
  const std::string off = "\"apply_residual_connection_post_layernorm\": false";
  other.replace(other.find(off), off.size(), "\"apply_residual_connection_post_layernorm\": true");
  CHECK_THAT(model_error(other), Catch::Contains("residual additions to what the norms make"));
  std::string narrow(kBloom);
  const std::string usual = "\"n_inner\": null";
  narrow.replace(narrow.find(usual), usual.size(), "\"n_inner\": 100");
  CHECK_THAT(model_error(narrow), Catch::Contains("model.n_inner: 100 is refused"));
}

TEST_CASE("slopes are those of any number of heads", "[spec][model]") {
  const auto slopes = [](std::int64_t heads) {
    std::vector<float> all;
    for (std::int64_t head = 0; head < heads; ++head)
      all.push_back(alibi_slope(heads, head));
    return all;
  };
  using Slopes = std::vector<float>;
  CHECK(slopes(1) == Slopes{0x1p-8F});
  CHECK(slopes(2) == Slopes{0x1p-4F, 0x1p-8F});
  // Those of 2 heads, and of those of 4 the first; of 4 heads, and of those of 8 the first and the
  // third.
  CHECK(slopes(3) == Slopes{0x1p-4F, 0x1p-8F, 0x1p-2F});
  CHECK(slopes(6) == Slopes{0x1p-2F, 0x1p-4F, 0x1p-6F, 0x1p-8F, 0x1p-1F, 0x1p-3F});
  CHECK(alibi_slope(40, 0) == Approx(std::pow(2.0, -0.25)));
  CHECK(alibi_slope(40, 39) == Approx(std::pow(2.0, -0.125 * 15)));
}

TEST_CASE("Baichuan's positions and head are those of its keys", "[spec][model]") {
  const Architecture seven(read_model(kBaichuan7B));
  CHECK(seven.layers[0].attention.rotary == RotarySpec{.dims = 128, .theta = 10000.0});
  CHECK_FALSE(seven.layers[0].attention.falls);
  CHECK_FALSE(seven.unit_head);
  const Architecture thirteen(read_model(kBaichuan13B));
  CHECK_FALSE(thirteen.layers[0].attention.rotary);
  CHECK(thirteen.layers[0].attention.falls);
  CHECK_FALSE(thirteen.unit_head);
  const auto changed = [](std::string_view config, const std::string& from, const std::string& to) {
    std::string text(config);
    REQUIRE(text.find(from) != std::string::npos);
    return text.replace(text.find(from), from.size(), to);
  };
  const std::string vocabulary = "\"vocab_size\": 64000";
  const ModelSpec second =
      read_model(changed(kBaichuan13B, vocabulary, "\"vocab_size\": 125696, \"z_loss_weight\": 0"));
  CHECK(second.unit_head);
  CHECK(num_parameters(second) == 13'896'668'160);
  CHECK(read_model(changed(kBaichuan7B, vocabulary, "\"vocab_size\": 64000, \"norm_head\": true"))
            .unit_head);
  CHECK_FALSE(
      read_model(changed(kBaichuan7B, vocabulary, "\"vocab_size\": 125696, \"norm_head\": false"))
          .unit_head);
  // The second generation of 7 B says both lengths, and rotates.
  CHECK(read_model(
            changed(kBaichuan7B, "\"model_type\"", "\"model_max_length\": 4096, \"model_type\"")) ==
        read_model(kBaichuan7B));
  CHECK_THAT(model_error(changed(kBaichuan7B, "\"max_position_embeddings\": 4096,", "")),
             Catch::Contains("model.max_position_embeddings: missing: write the longest sequence, "
                             "or write it as model_max_length"));
  CHECK_THAT(model_error(changed(kBaichuan13B, vocabulary,
                                 "\"vocab_size\": 125696, \"z_loss_weight\": 0.1")),
             Catch::Contains("model.z_loss_weight: 0.1 is refused"));
  CHECK_THAT(model_error(changed(kBaichuan13B, vocabulary,
                                 "\"vocab_size\": 125696, \"tie_word_embeddings\": true")),
             Catch::Contains("model.tie_word_embeddings: true is refused"));
  CHECK_THAT(
      model_error(changed(kBaichuan7B, "\"model_type\"", "\"rope_theta\": 5, \"model_type\"")),
      Catch::Contains("model.rope_theta"));
}

TEST_CASE("mixtures of experts are those of their keys", "[spec][model]") {
  const Architecture mixtral(read_model(kMixtral));
  CHECK(mixtral.layers[31].feed_forward.experts ==
        ExpertsSpec{.count = 8, .per_token = 2, .normalised = true});
  CHECK(mixtral.layers[31].feed_forward.width == 14336);
  CHECK(mixtral.layers[0].attention.window == 0);
  const Architecture qwen(read_model(kQwen3Moe));
  CHECK(qwen.layers[0].feed_forward.experts ==
        ExpertsSpec{.count = 128, .per_token = 8, .normalised = true});
  CHECK(qwen.layers[0].feed_forward.width == 768);
  CHECK(qwen.layers[0].attention.head_dim == 128);
  const Architecture olmoe(read_model(kOlmoe));
  CHECK(olmoe.layers[0].feed_forward.experts ==
        ExpertsSpec{.count = 64, .per_token = 8, .normalised = false});
  CHECK(olmoe.layers[0].attention.query_key_norm == QueryKeyNorm::kFullWidth);
  const auto changed = [](std::string_view config, const std::string& from, const std::string& to) {
    std::string text(config);
    REQUIRE(text.find(from) != std::string::npos);
    return text.replace(text.find(from), from.size(), to);
  };
  // What the config.json does not say is what transformers takes.
  CHECK(read_model(changed(kOlmoe, "\"norm_topk_prob\": false,", "")) == read_model(kOlmoe));
  CHECK_FALSE(read_model(changed(kQwen3Moe, "\"norm_topk_prob\": true,", "")).experts.normalised);
  CHECK(read_model(changed(kOlmoe, "\"router_aux_loss_coef\": 0.01,", "")) == read_model(kOlmoe));
  CHECK(read_model(changed(kMixtral, "\"router_aux_loss_coef\": 0.02,", ""))
            .experts.balance_coefficient == 0.001F);
  CHECK(read_model(changed(kMixtral, "\"num_local_experts\": 8", "\"num_experts\": 8")) ==
        read_model(kMixtral));
  CHECK(read_model(changed(kQwen3Moe, "\"num_experts\": 128", "\"num_local_experts\": 128")) ==
        read_model(kQwen3Moe));
  // The auxiliary loss is there where the model gives its routers' logits.
  const Architecture balanced(read_model(
      changed(kMixtral, "\"output_router_logits\": false", "\"output_router_logits\": true")));
  CHECK(balanced.layers[5].feed_forward.experts->balance_coefficient == 0.02F);
  // All layers have the window, whatever max_window_layers says.
  const ModelSpec windowed = read_model(
      changed(changed(kQwen3Moe, "\"use_sliding_window\": false", "\"use_sliding_window\": true"),
              "\"sliding_window\": null", "\"sliding_window\": 32"));
  CHECK(windowed.window_of_layer(0) == 32);
  CHECK(windowed.window_of_layer(47) == 32);
  CHECK_THAT(model_error(changed(kOlmoe, "\"clip_qkv\": null", "\"clip_qkv\": 8.0")),
             Catch::Contains("model.clip_qkv: 8 is refused"));
  CHECK_THAT(model_error(changed(kMixtral, "\"hidden_act\"",
                                 "\"router_jitter_noise\": 0.1, \"hidden_act\"")),
             Catch::Contains("model.router_jitter_noise: 0.1 is refused"));
  CHECK(read_model(
            changed(kMixtral, "\"hidden_act\"", "\"router_jitter_noise\": 0.0, \"hidden_act\"")) ==
        read_model(kMixtral));
  CHECK_THAT(
      model_error(changed(kMixtral, "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 9")),
      Catch::Contains("model.num_experts_per_tok: 9 is more than the 8 experts of "
                      "model.num_local_experts"));
}

TEST_CASE("gpt-oss is what its keys say, and without them what transformers takes",
          "[spec][model]") {
  const ModelSpec model = read_model(kGptOss);
  const Architecture architecture(model);
  CHECK(architecture.layers[0].attention.sinks);
  CHECK(architecture.layers[0].attention.window == 128);
  CHECK(architecture.layers[1].attention.window == 0);
  CHECK(architecture.layers[0].feed_forward.limit == 7.0F);
  CHECK(architecture.layers[0].feed_forward.experts->router_bias);
  CHECK_FALSE(model.rope_scaling.whole_pairs);
  const auto without = [](std::string text, const std::string& key, std::size_t length) {
    const std::size_t at = text.find("\"" + key + "\"");
    REQUIRE(at != std::string::npos);
    return text.erase(at, length);
  };
  std::string bare(kGptOss);
  const std::size_t scaling = bare.find("\"rope_scaling\"");
  bare.erase(scaling, bare.find("\"router_aux", scaling) - scaling);
  for (const auto& [key, length] : {std::pair("attention_bias", 23),
                                    {"head_dim", 15},
                                    {"swiglu_limit", 20},
                                    {"sliding_window", 23}}) {
    bare = without(bare, key, static_cast<std::size_t>(length));
  }
  CHECK(read_model(bare) == model);
  std::string steeper(kGptOss);
  steeper.insert(1, "\"swiglu_alpha\": 2, ");
  CHECK_THAT(model_error(steeper), Catch::Contains("model.swiglu_alpha: 2 is refused"));
  std::string packed(kGptOss);
  packed.insert(1, "\"quantization_config\": {\"quant_method\": \"mxfp4\"}, ");
  CHECK_THAT(model_error(packed), Catch::Contains("model.quantization_config"));
}

TEST_CASE("some layers of Qwen3's mixtures are dense", "[spec][model]") {
  using Layers = std::vector<bool>;
  const auto layers = [](const std::vector<std::string>& overrides) {
    std::vector<std::string> sets{"model.model_type=qwen3_moe", "model.num_hidden_layers=5"};
    sets.insert(sets.end(), overrides.begin(), overrides.end());
    Layers found;
    for (const LayerSpec& layer : Architecture(load_tiny(sets).config.model).layers) {
      found.push_back(layer.feed_forward.experts.has_value());
      CHECK(layer.feed_forward.width == (found.back() ? 768 : 96));
    }
    return found;
  };
  CHECK(layers({}) == Layers{true, true, true, true, true});
  CHECK(layers({"model.decoder_sparse_step=2"}) == Layers{false, true, false, true, false});
  CHECK(layers({"model.mlp_only_layers=[0, 3]"}) == Layers{false, true, true, false, true});
  CHECK(layers({"model.mlp_only_layers=[1]", "model.decoder_sparse_step=2"}) ==
        Layers{false, false, false, true, false});
  CHECK_THAT(error_of_tiny({"model.model_type=qwen3_moe", "model.mlp_only_layers=[2]"}),
             Catch::Contains("names layer 2, but there are 2, counted from 0"));
  CHECK_THAT(error_of_tiny({"model.model_type=qwen3_moe", "model.mlp_only_layers=[-1]"}),
             Catch::Contains("must be numbers of layers, counted from 0, found"));
  CHECK_THAT(error_of_tiny({"model.model_type=mixtral", "model.mlp_only_layers=[1]"}),
             Catch::Contains("model.mlp_only_layers: has no meaning for model_type \"mixtral\""));
}

TEST_CASE("layers rotate as no_rope_layers says", "[spec][model]") {
  const auto rotary = [](const std::string& override) {
    return load_tiny({"model.model_type=smollm3", "model.num_hidden_layers=5", override})
        .config.model.rotary_layers;
  };
  using Layers = std::vector<bool>;
  CHECK(rotary("model.no_rope_layers=null") == Layers{true, true, true, false, true});
  CHECK(rotary("model.no_rope_layer_interval=2") == Layers{true, false, true, false, true});
  CHECK(rotary("model.no_rope_layers=[0, 1, 1, 1, 0, 0]") ==
        Layers{false, true, true, true, false});
  CHECK_THAT(error_of_tiny({"model.model_type=smollm3", "model.num_hidden_layers=5",
                            "model.no_rope_layers=[0, 1]"}),
             Catch::Contains("model.no_rope_layers: has 2 entries, but there are 5 layers"));
}

TEST_CASE("a part of each head is rotated where the family has it", "[spec][model]") {
  const std::string phi3 = "model.model_type=phi3";
  CHECK(load_tiny({phi3, "model.partial_rotary_factor=0.75"}).config.model.rotated_dims() == 12);
  CHECK(load_tiny({phi3, "model.rope_parameters={\"partial_rotary_factor\": 0.5}"})
            .config.model.rotated_dims() == 8);
  CHECK_THAT(error_of_tiny({phi3, "model.partial_rotary_factor=0.05"}),
             Catch::Contains("0.05 of heads of 16 are 0 numbers, which must be even"));
  CHECK_THAT(error_of_tiny({"model.rope_parameters={\"partial_rotary_factor\": 0.5}"}),
             Catch::Contains("rotating a part of each head is not what llama does"));
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
