// Parameters and FLOPs against published counts; config.json files as they are on the hub.
#include "engine/config/model_spec.h"

#include "engine/config/arch/architecture.h"
#include "engine/config/arch/model_counts.h"
#include "kernels/math/activation.h"
#include "tests/unit/config/published_models.h"

namespace dstrain {

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
