// The keys of mixtures of experts, as published models write them.
#include <cmath>

#include "engine/config/arch/architecture.h"
#include "engine/config/arch/model_counts.h"
#include "kernels/math/activation.h"
#include "tests/unit/config/published_models.h"

namespace dstrain {

TEST_CASE("a token's parameters are the published ones", "[spec][model]") {
  CHECK(active_parameters(read_model(kMixtral)) == 12'879'925'248);
  CHECK(active_parameters(read_model(kQwen3Moe)) == 3'353'032'704);
  CHECK(active_parameters(read_model(kOlmoe)) == 1'282'017'280);
  CHECK(active_parameters(read_model(kGptOss)) == 4'187'440'704);
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
  CHECK(read_model(packed) == model);  // of the weights' files, which are read so
  std::string otherwise(kGptOss);
  otherwise.insert(1, "\"quantization_config\": {\"quant_method\": \"awq\"}, ");
  CHECK_THAT(model_error(otherwise),
             Catch::Contains("model.quantization_config.quant_method: must be \"mxfp4\""));
}

constexpr const char* kDeepseekV2Lite = R"({
  "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "aux_loss_alpha": 0.001, "bos_token_id": 100000, "eos_token_id": 100001,
  "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048,
  "initializer_range": 0.02, "intermediate_size": 10944, "kv_lora_rank": 512,
  "max_position_embeddings": 163840, "model_type": "deepseek_v2", "moe_intermediate_size": 1408,
  "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
  "norm_topk_prob": false, "num_attention_heads": 16, "num_experts_per_tok": 6,
  "num_hidden_layers": 27, "num_key_value_heads": 16, "pretraining_tp": 1, "q_lora_rank": null,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
                   "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096,
                   "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": true,
  "tie_word_embeddings": false, "topk_group": 1, "topk_method": "greedy",
  "torch_dtype": "bfloat16", "use_cache": true, "v_head_dim": 128, "vocab_size": 102400})";

TEST_CASE("DeepSeek-V2-Lite is what its keys say", "[spec][model]") {
  const ModelSpec model = read_model(kDeepseekV2Lite);
  const Architecture architecture(model);
  CHECK(num_parameters(architecture) == 15'706'484'224);  // as DeepSeek says, 15.7 billion
  const AttentionSpec& attention = architecture.layers[0].attention;
  CHECK(attention.head_dim == 192);
  CHECK(attention.key_value_heads == 16);
  CHECK(attention.rotary->dims == 64);
  CHECK(attention.rotary->scaling.attention_factor == 1.0);
  const double growth = 1.0 + 0.1 * 0.707 * std::log(40.0);
  CHECK(static_cast<double>(attention.scale) ==
        Approx(growth * growth / std::sqrt(192.0)).epsilon(1e-6));
  CHECK_FALSE(architecture.layers[0].feed_forward.experts);
  CHECK(architecture.layers[0].feed_forward.width == 10944);
  const FeedForwardSpec& mixture = architecture.layers[1].feed_forward;
  CHECK(mixture.width == 1408);
  CHECK(mixture.experts->shared_width == 2816);
  CHECK(mixture.experts->balance_coefficient == 0.0F);
  std::string balanced(kDeepseekV2Lite);
  const auto balance = [&](const char* keys) {
    balanced.insert(balanced.find('{') + 1, keys);
    return Architecture(read_model(balanced)).layers[1].feed_forward.experts->balance_coefficient;
  };
  CHECK(balance("\"output_router_logits\": true,") == 0.0F);  // aux_loss_alpha is not read
  CHECK(balance("\"router_aux_loss_coef\": 0.02, \"router_z_loss_coef\": 0.001,") == 0.02F);
  CHECK(read_model(balanced).experts.z_coefficient == 0.001F);
  std::string odd(kDeepseekV2Lite);  // only the part that rotates needs pairs
  odd.replace(odd.find("\"qk_nope_head_dim\": 128"), 23, "\"qk_nope_head_dim\": 127");
  CHECK(Architecture(read_model(odd)).layers[0].attention.head_dim == 191);
  odd.replace(odd.find("\"qk_rope_head_dim\": 64"), 22, "\"qk_rope_head_dim\": 63");
  CHECK_THAT(model_error(odd), Catch::Contains("model.qk_rope_head_dim: rotary positions need an "
                                               "even number, found 63"));
  CHECK_THAT(model_error([] {
               std::string wide(kDeepseekV2Lite);
               return wide.replace(wide.find("\"v_head_dim\": 128"), 17, "\"v_head_dim\": 193");
             }()),
             Catch::Contains("model.v_head_dim: 193 is more than a head of keys has"));
}

constexpr const char* kDeepseekV3 = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "aux_loss_alpha": 0.001, "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1,
  "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
  "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
  "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048,
  "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
  "norm_topk_prob": true, "num_attention_heads": 128, "num_experts_per_tok": 8,
  "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
  "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "rms_norm_eps": 1e-06,
  "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
                   "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
                   "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": true,
  "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc",
  "torch_dtype": "bfloat16", "use_cache": true, "v_head_dim": 128, "vocab_size": 129280})";

TEST_CASE("DeepSeek-V3 is what its keys say", "[spec][model]") {
  const ModelSpec model = read_model(kDeepseekV3);
  const Architecture architecture(model);
  CHECK(num_parameters(architecture) == 671'026'404'352);  // as DeepSeek says, 671 billion
  CHECK_FALSE(architecture.layers[2].feed_forward.experts);
  const ExpertsSpec& experts = *architecture.layers[3].feed_forward.experts;
  CHECK(experts.score == RouterScore::kSigmoid);
  CHECK(experts.group_score == GroupScore::kTwoLargest);
  CHECK(experts.groups == 8);
  CHECK(experts.chosen_groups == 4);
  CHECK(experts.shared_width == 2048);
  CHECK(experts.scale == 2.5F);
  CHECK(experts.normalised);
  CHECK(experts.balancing_bias);
  CHECK(experts.bias_update_rate == 0.001F);
  CHECK(experts.balance_coefficient == 0.0F);
  const auto changed = [](const std::string& from, const std::string& to) {
    std::string keys(kDeepseekV3);
    return keys.replace(keys.find(from), from.size(), to);
  };
  CHECK(read_model(changed("\"ep_size\": 1", "\"moe_router_bias_update_rate\": 0"))
            .experts.bias_update_rate == 0.0F);
  CHECK_THAT(model_error(changed("\"ep_size\": 1", "\"router_z_loss_coef\": 0.001")),
             Catch::Contains("router_z_loss_coef"));
  CHECK_THAT(model_error(changed("\"sigmoid\"", "\"softmax\"")),
             Catch::Contains("model.scoring_func"));
  CHECK_THAT(model_error(changed("\"n_group\": 8", "\"n_group\": 7")),
             Catch::Contains("model.n_group"));
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

}  // namespace dstrain
