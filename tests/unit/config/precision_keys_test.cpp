// Which number formats a config may combine, and what they are where it says nothing.
#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

LoadedConfig resolved(const std::vector<std::string>& overrides) {
  LoadedConfig loaded = load_tiny(overrides);
  resolve_config(loaded, 2);
  return loaded;
}

std::string error_of(const std::vector<std::string>& overrides) {
  return config_error_of([&] { resolved(overrides); });
}

bool tells(const LoadedConfig& loaded, const std::string& words) {
  for (const std::string& notice : loaded.notices) {
    if (notice.find(words) != std::string::npos) return true;
  }
  return false;
}

const std::string kBf16 = "bf16.enabled=true";
const std::string kF16 = "fp16.enabled=true";
const std::string kMaster = "bf16.bf16_master_weights_and_grads=true";
const std::string kStates = "bf16.bf16_optimizer_states=true";

}  // namespace

TEST_CASE("the loss scale's settings arrive, and have DeepSpeed's defaults", "[spec][precision]") {
  CHECK(load_tiny({kF16}).config.precision == Precision::kF16);
  CHECK(load_tiny({kF16}).config.loss_scale == LossScaleConfig{.static_scale = 0.0,
                                                               .initial_scale_power = 16,
                                                               .window = 1000,
                                                               .hysteresis = 2,
                                                               .consecutive_hysteresis = false,
                                                               .min_scale = 1.0});
  const std::string block =
      R"(fp16={"enabled": true, "loss_scale": 0, "initial_scale_power": 12, "loss_scale_window": 50,
               "hysteresis": 4, "consecutive_hysteresis": true, "min_loss_scale": 2})";
  CHECK(load_tiny({block, "zero_optimization.stage=2"}).config.loss_scale ==
        LossScaleConfig{.initial_scale_power = 12,
                        .window = 50,
                        .hysteresis = 4,
                        .consecutive_hysteresis = true,
                        .min_scale = 2.0});
}

TEST_CASE("a loss scale out of DeepSpeed's ranges is refused", "[spec][precision]") {
  const auto error = [](const std::string& set) { return error_of_tiny({kF16, set}); };
  CHECK_THAT(error("fp16.loss_scale=-1"), Contains("must be a number of at least 0, found -1"));
  CHECK_THAT(error("fp16.loss_scale=true"), Contains("must be a number"));
  CHECK_THAT(error("fp16.loss_scale=1e40"), Contains("must be a number in [0, 1.7014"));
  CHECK_THAT(error("fp16.initial_scale_power=128"), Contains("an integer in [0, 127], found 128"));
  CHECK_THAT(error("fp16.loss_scale_window=0"), Contains("of at least 1, found 0"));
  CHECK_THAT(error("fp16.min_loss_scale=0"), Contains("greater than 0, found 0"));
  CHECK_THAT(error_of_tiny({kF16, "zero_optimization.stage=1", "fp16.hysteresis=0"}),
             Contains("of at least 1, found 0"));
  CHECK_THAT(error_of({kF16, "fp16.initial_scale_power=2", "fp16.min_loss_scale=8"}),
             Contains("fp16.min_loss_scale: 8 is greater than the first scale, 2 to the "
                      "fp16.initial_scale_power 2"));
}

TEST_CASE("settings of a loss scale that does not move say that they have no effect",
          "[spec][precision]") {
  CHECK(tells(load_tiny({kF16, "fp16.loss_scale=128", "fp16.loss_scale_window=0"}),
              "no effect: fp16.loss_scale_window: the loss scale is static"));
  CHECK(tells(load_tiny({kF16, "fp16.hysteresis=3"}),
              "no effect: fp16.hysteresis: only a dynamic scale under ZeRO stages 1 to 3 forgives "
              "overflows"));
  CHECK(load_tiny({"fp16={\"enabled\": false, \"loss_scale_window\": 0}"}).notices.empty());
}

TEST_CASE("a model computes in one precision", "[spec][precision]") {
  CHECK(error_of_tiny({kBf16, kF16}) ==
        "--set fp16.enabled=true: fp16.enabled: bf16.enabled is true as well: a model computes in "
        "one of them; set the other to false");
  CHECK_THAT(error_of_tiny({"bfloat16.enabled=true", kF16}), Contains("bf16.enabled is true"));
  CHECK(load_tiny({"bf16.enabled=false", kF16}).config.precision == Precision::kF16);
  CHECK(load_tiny({kBf16, "fp16.enabled=false"}).config.precision == Precision::kBF16);
}

TEST_CASE("gradients are accumulated in fp32 unless asked otherwise, and that is reported",
          "[spec][precision]") {
  const LoadedConfig plain = resolved({});
  CHECK(plain.config.formats.grad_accum == DType::kF32);
  CHECK_FALSE(tells(plain, "grad_accum_dtype"));
  const LoadedConfig bf16 = resolved({kBf16});
  CHECK(bf16.config.formats.grad_accum == DType::kF32);
  CHECK(bf16.config.formats.communication == DType::kF32);
  CHECK(tells(bf16,
              "data_types.grad_accum_dtype: fp32 (DeepSpeed's default is the compute dtype, here "
              "bf16): 2 bytes a parameter more"));
  const LoadedConfig f16 = resolved({kF16, "data_types.grad_accum_dtype=fp16"});
  CHECK(f16.config.formats.grad_accum == DType::kF16);
  CHECK(f16.config.formats.communication == DType::kF16);
  CHECK(resolved({kF16, "data_types.grad_accum_dtype=auto"}).config.formats.grad_accum ==
        DType::kF32);
}

TEST_CASE("gradients are fp32 or what the model computes in", "[spec][precision]") {
  const std::string accumulate = "data_types.grad_accum_dtype=";
  CHECK(error_of({accumulate + "bf16"}) ==
        "--set: data_types.grad_accum_dtype: \"bf16\" is neither fp32 nor what the model computes "
        "in, fp32: write \"fp32\"");
  CHECK_THAT(error_of({kBf16, accumulate + "fp16"}),
             Contains("\"fp16\" is neither fp32 nor what the model computes in, bf16: write "
                      "\"fp32\" or \"bf16\""));
  CHECK_THAT(error_of({accumulate + "fp8"}),
             Contains("must be \"fp32\", \"fp16\" or \"bf16\", found the string \"fp8\""));
  CHECK(error_of({kF16, "communication_data_type=bf16"}) ==
        "--set: communication_data_type: \"bf16\" goes with bf16 only, but the model computes in "
        "fp16: write \"fp32\", or leave it out");
  CHECK_THAT(error_of({kBf16, "communication_data_type=fp16"}), Contains("goes with fp16 only"));
  CHECK(resolved({kBf16, "communication_data_type=bf16"}).config.formats.communication ==
        DType::kBF16);
}

TEST_CASE("bf16 master weights bring bf16 gradients", "[spec][precision]") {
  const LoadedConfig loaded = resolved({kBf16, kMaster, kStates});
  CHECK(loaded.config.formats.bf16_master);
  CHECK(loaded.config.formats.bf16_optimizer_states);
  CHECK(loaded.config.formats.grad_accum == DType::kBF16);
  CHECK(loaded.config.formats.communication == DType::kBF16);
  CHECK_FALSE(tells(loaded, "bf16"));
  CHECK(
      error_of({kBf16, kMaster, "data_types.grad_accum_dtype=fp32"}) ==
      "--set: data_types.grad_accum_dtype: \"fp32\" contradicts "
      "bf16.bf16_master_weights_and_grads true, with which gradients are bf16: write \"bf16\", or "
      "leave it out");
  CHECK(
      resolved({kBf16, "bfloat16.bf16_master_weights_and_grads=true"}).config.formats.bf16_master);
}

TEST_CASE("bf16 states alone go beyond DeepSpeed, and that is reported", "[spec][precision]") {
  const LoadedConfig loaded = resolved({kBf16, kStates});
  CHECK(loaded.config.formats.bf16_optimizer_states);
  CHECK_FALSE(loaded.config.formats.bf16_master);
  CHECK(tells(loaded,
              "bf16.bf16_optimizer_states: with fp32 master weights, which DeepSpeed does "
              "not offer"));
}

TEST_CASE("bf16 formats need bf16, and an optimizer that has them", "[spec][precision]") {
  for (const std::string& key : {kMaster, kStates}) {
    CHECK_THAT(error_of_tiny({key}), Contains("true is refused: it is a format of bf16 training: "
                                              "set bf16.enabled as well"));
    CHECK_THAT(error_of_tiny({kF16, key}), Contains("set bf16.enabled as well"));
    CHECK_THAT(error_of({kBf16, key, "optimizer={\"type\": \"Lamb\"}"}),
               Contains("Lamb keeps its parameters and states in fp32 only: leave it out, or take "
                        "another optimizer.type"));
    CHECK_THAT(error_of({kBf16, key, "optimizer={\"type\": \"Muon\"}"}), Contains("Muon keeps"));
  }
  CHECK(load_tiny({"bf16.bf16_optimizer_states=false"}).notices.empty());
}

TEST_CASE("what fp16 and bf16 cannot say here is refused or reported", "[spec][precision]") {
  CHECK_THAT(error_of_tiny({kF16, "fp16.fp16_master_weights_and_grads=true"}),
             Contains("updates would be lost to rounding in fp16 master weights"));
  CHECK(tells(load_tiny({kF16, "fp16.auto_cast=true"}), "the model takes tokens"));
  CHECK(tells(load_tiny({kBf16, "bf16.check_grad_overflow=false"}),
              "no effect: bf16.check_grad_overflow: every step's gradients are checked, in every "
              "stage and precision"));
  CHECK(tells(load_tiny({kBf16, "bf16.immediate_grad_update=true"}),
              "gradients are always added up as soon as they are computed"));
  CHECK_THAT(error_of_tiny({"gradient_predivide_factor=0"}), Contains("greater than 0, found 0"));
  CHECK(tells(resolved({"prescale_gradients=true", "gradient_predivide_factor=2"}),
              "no effect: gradient_predivide_factor: prescale_gradients divides by all ranks"));
}

TEST_CASE("TF32 is off unless asked for, and says where it has no effect", "[spec][precision]") {
  const std::string on = "training.tf32=true";
  const std::string cuda = "training.device=cuda";
  CHECK_FALSE(resolved({cuda}).config.training.tf32);
  CHECK(resolved({cuda, on}).config.training.tf32);
  CHECK_FALSE(tells(resolved({cuda, on}), "training.tf32"));
  CHECK(tells(resolved({on}), "no effect: training.tf32: a CPU multiplies in full fp32"));
  CHECK(tells(resolved({cuda, on, kBf16}), "and the model computes in bf16"));
  CHECK_THAT(error_of_tiny({"training.tf23=true"}), Contains("did you mean \"tf32\""));
}

TEST_CASE("8-bit products stand beside bf16 and fp32, in multiples of 16", "[spec][precision]") {
  const std::string on = "fp8.enabled=true";
  const Config config = resolved({kBf16, on, "fp8.margin=2"}).config;
  CHECK(config.fp8 == Fp8Config{.enabled = true, .amax_history = 1024, .margin = 2});
  CHECK_FALSE(resolved({kBf16}).config.fp8.enabled);
  CHECK(tells(resolved({kBf16, "fp8.margin=2"}), "no effect: fp8.margin: fp8.enabled is false"));
  const auto error = [](std::vector<std::string> overrides) {
    LoadedConfig loaded = load_tiny(std::move(overrides));
    try {
      resolve_config(loaded, 2);
    } catch (const ConfigError& thrown) {
      return std::string(thrown.what());
    }
    return std::string("none");
  };
  CHECK(error({on}) == "none");
  CHECK_THAT(error({"fp16.enabled=true", on}), Contains("the model computes in fp16"));
  CHECK_THAT(error({kBf16, on, "model.model_type=deepseek_v2"}),
             Contains("fp8.enabled: true, and the model's attention goes through latents"));
  CHECK_THAT(error_of({kBf16, on, "training.mlp_tile_tokens=16"}),
             Contains("training.mlp_tile_tokens: 16, and fp8.enabled is true"));
  CHECK_THAT(
      error({kBf16, on, "model.hidden_size=72", "model.head_dim=16"}),
      Contains("the hidden size 72 makes 72") && Contains("expected model.hidden_size 64 or 80"));
  CHECK_THAT(error({kBf16, on, "model.intermediate_size=40"}),
             Contains("the feed-forward width 40") &&
                 Contains("expected model.intermediate_size 32 or 48"));
  CHECK_THAT(error({kBf16, on, "tensor_parallel.size=2", "model.intermediate_size=80"}),
             Contains("80 / tensor_parallel.size 2 makes 40") &&
                 Contains("expected model.intermediate_size 64 or 96"));
  CHECK(error({kBf16, on, "tensor_parallel.size=2", "model.intermediate_size=96"}) == "none");
  CHECK_THAT(
      error({kBf16, on, "model.num_key_value_heads=1", "model.head_dim=8"}),
      Contains("1 key/value head × 8 on a rank makes 8") && Contains("expected model.head_dim 16"));
  CHECK_THAT(error({kBf16, on, "data.sequence_length=100", "train_batch_size=2"}),
             Contains("1 × data.sequence_length 100 tokens make 100") &&
                 Contains("expected data.sequence_length 96 or 112"));
  CHECK_THAT(error_of_tiny({"fp8.amax_history=3"}), Contains("did you mean \"amax_history_len\""));
}

TEST_CASE("attention is dstrain's own unless asked for, and says where cuDNN has no effect",
          "[spec][precision]") {
  const std::string cudnn = "training.attention=cudnn";
  const std::string cuda = "training.device=cuda";
  CHECK(resolved({cuda, kBf16}).config.training.attention == AttentionKernels::kOwn);
  CHECK(resolved({cuda, kBf16, "training.attention=auto"}).config.training.attention ==
        AttentionKernels::kFaster);
  CHECK_FALSE(tells(resolved({cuda, kBf16, cudnn}), "training.attention"));
  CHECK(tells(resolved({kBf16, cudnn}), "no effect: training.attention: cuDNN is for GPUs"));
  CHECK(tells(resolved({cuda, cudnn}), "and the model computes in fp32"));
}

TEST_CASE("algorithms of matrix products are kept with the run, elsewhere or not", "[spec]") {
  const auto where = [](const std::string& value) {
    return load_tiny({"training.matmul_algorithms=" + value}).config.training.matmul_algorithms;
  };
  CHECK(load_tiny({}).config.training.matmul_algorithms == "auto");
  CHECK(where("auto") == "auto");
  CHECK(where("untimed") == "untimed");
  CHECK(where("/shared/algorithms.jsonl") == "/shared/algorithms.jsonl");
  CHECK_THAT(error_of_tiny({"training.matmul_algorithms=\"\""}),
             Contains("must be \"auto\", \"untimed\" or a file's path, found \"\""));
}

TEST_CASE("a run bears more skipped steps in a row while a loss scale falls", "[spec][precision]") {
  const auto most_skips = [](const std::vector<std::string>& overrides) {
    return resolved(overrides).config.training.max_consecutive_skips;
  };
  CHECK(most_skips({}) == 5);
  CHECK(most_skips({kBf16}) == 5);
  CHECK(most_skips({kF16}) == 40);
  CHECK(most_skips({kF16, "fp16.loss_scale=128"}) == 5);
  CHECK(most_skips({kF16, "training.max_consecutive_skips=3"}) == 3);
  CHECK(origin_of(resolved({kF16}), "training.max_consecutive_skips") ==
        "derived: a dynamic loss scale falls by skipping steps");
  CHECK_THAT(error_of_tiny({"training.max_consecutive_skips=0"}), Contains("of at least 1"));
}

}  // namespace dstrain
