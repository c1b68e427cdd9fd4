// The resolved file runs again as it is, and says where each value comes from; and the configs
// that ship with dstrain load.
#include "engine/config/arch/model_counts.h"
#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

LoadedConfig run_again(const LoadedConfig& loaded, int ranks) {
  LoadedConfig again = load_text(to_json(loaded));
  resolve_config(again, ranks);
  return again;
}

const std::string kMistral = R"(model={"model_type": "mistral", "vocab_size": 256,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": null, "max_position_embeddings": 8192, "sliding_window": null,
    "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 4096}})";
const std::string kGpt2 = R"(model={"model_type": "gpt2", "vocab_size": 256, "n_embd": 64,
    "n_layer": 2, "n_head": 4, "n_positions": 128, "n_inner": null, "resid_pdrop": 0.1})";

const std::string kOneCycle = R"(scheduler={"type": "OneCycle", "params":
    {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "decay_mom_rate": 0.01}})";

}  // namespace

TEST_CASE("the resolved file loads to an equal config, every value from the file",
          "[spec][print]") {
  const std::vector<std::vector<std::string>> variants = {
      {},
      {"bf16.enabled=true", "gradient_clipping=0", "checkpoint.resume=some/folder"},
      {"scheduler.type=WarmupLR"},
      {"scheduler.type=WarmupDecayLR", "scheduler.params.warmup_num_steps=5"},
      {"scheduler.type=WarmupCosineLR", "scheduler.params.warmup_num_steps=5",
       "data.train=[\"a\", {\"path\": \"b \\\"q\\\"\", \"weight\": 0.1}]"},
      {kMistral, "training.seed=9223372036854775807"},
      {kGpt2, "data.validation=null"},
      {"fp16.enabled=true"},
      {"model.initial_weights=some/weights"},
      {"fp16={\"enabled\": true, \"loss_scale\": 512.5}", "zero_optimization.stage=2"},
      {"fp16={\"enabled\": true, \"hysteresis\": 3, \"consecutive_hysteresis\": true, "
       "\"initial_scale_power\": 9, \"loss_scale_window\": 77, \"min_loss_scale\": 4}",
       "zero_optimization.stage=1", "data_types.grad_accum_dtype=fp16",
       "communication_data_type=fp16", "prescale_gradients=true"},
      {"bf16={\"enabled\": true, \"bf16_master_weights_and_grads\": true, "
       "\"bf16_optimizer_states\": true}",
       "communication_data_type=fp32", "gradient_predivide_factor=0.5"},
      {"zero_optimization={\"stage\": 3, \"overlap_comm\": false}"},
      {"zero_optimization={\"stage\": 3, \"prefetch_bucket_size\": 5e7, "
       "\"param_persistence_threshold\": 0, \"max_live_parameters\": 1e9, "
       "\"max_reuse_distance\": 1e9, \"model_persistence_threshold\": 7}"},
      {"zero_optimization={\"stage\": 3, \"zero_quantized_gradients\": true}"},
      {"optimizer={\"type\": \"adam\", \"params\": {\"lr\": 0.1, \"adam_w_mode\": false}}"},
      {"optimizer={\"type\": \"adam\", \"params\": {\"lr\": 0.1, \"weight_decay\": 0.1}}"},
      {"optimizer={\"type\": \"SGD\", \"params\": {\"momentum\": 0.9, \"nesterov\": true}}"},
      {"optimizer.type=Adagrad"},
      {"optimizer={\"type\": \"RMSprop\", \"params\": {\"alpha\": 0.9, \"centered\": true}}"},
      {"optimizer={\"type\": \"Lion\", \"params\": {\"betas\": [0.95, 0.98]}}"},
      {"optimizer={\"type\": \"Lamb\", \"params\": {\"max_coeff\": 5, \"eps_inside_sqrt\": true}}"},
      {"optimizer={\"type\": \"Muon\"}"},
      {"optimizer={\"type\": \"Muon\", \"params\": {\"lr\": 0.1, \"adam_lr\": 0.2}}"},
      {"scheduler={\"type\": \"LRRangeTest\", \"params\": {\"lr_range_test_staircase\": true}}"},
      {kOneCycle},
      {kOneCycle, "optimizer={\"type\": \"SGD\"}"},
      {kOneCycle, "scheduler.params.cycle_second_step_size=0",
       "scheduler.params.cycle_first_stair_count=4", "training.max_consecutive_skips=2"},
  };
  for (const auto& overrides : variants) {
    INFO(::Catch::Detail::stringify(overrides));
    LoadedConfig loaded = load_tiny(overrides);
    resolve_config(loaded, 2);
    const LoadedConfig again = run_again(loaded, 2);
    CHECK(again.config == loaded.config);
    REQUIRE(again.values.size() == loaded.values.size());
    for (std::size_t i = 0; i < again.values.size(); ++i) {
      INFO(again.values[i].path);
      CHECK(again.values[i].path == loaded.values[i].path);
      CHECK(again.values[i].value == loaded.values[i].value);
      CHECK_THAT(again.values[i].origin, Catch::Contains("run.json:"));
    }
    CHECK(again.notices.empty());
  }
}

TEST_CASE("training.device \"auto\" becomes what the machines are used for", "[spec][print]") {
  const auto resolved = [](const std::vector<std::string>& overrides, const MachineFacts& facts) {
    LoadedConfig loaded = load_tiny(overrides);
    resolve_config(loaded, 2, facts);
    return loaded;
  };
  const MachineFacts gpu{.cuda = true, .name = "NVIDIA H100 80GB HBM3"};
  CHECK(resolved({}, {}).config.training.device == DeviceChoice::kCpu);
  CHECK(resolved({"training.device=auto"}, gpu).config.training.device == DeviceChoice::kCuda);
  CHECK_THAT(describe_origins(resolved({}, gpu)),
             Catch::Contains("\"cuda\"") &&
                 Catch::Contains("derived: the ranks compute on NVIDIA H100 80GB HBM3"));
  CHECK(resolved({"training.device=cpu"}, gpu).config.training.device == DeviceChoice::kCpu);
  CHECK(resolved({"training.device=cuda"}, {}).config.training.device == DeviceChoice::kCuda);
}

TEST_CASE("the resolved file explains where it follows DeepSpeed 0.19", "[spec][print]") {
  LoadedConfig loaded = load_tiny({"scheduler.type=WarmupLR"});
  resolve_config(loaded, 1);
  const std::string json = to_json(loaded);
  CHECK_THAT(json, Catch::Contains("\"_notes\""));
  CHECK_THAT(json, Catch::Contains("gradient_clipping: default (DeepSpeed 0.19; releases before "
                                   "mid-2026 did not clip)"));
  CHECK_THAT(json, Catch::Contains("0.001 in older releases"));
}

TEST_CASE("every value is printed with its origin, in the contract's order", "[spec][print]") {
  const TemporaryFolder folder;
  const std::string file = folder.write("run.json", kTinyConfig);
  LoadedConfig loaded = load_config(file, {.overrides = {"optimizer.params.lr=1e-4"}});
  resolve_config(loaded, 2);
  std::string text = describe_origins(loaded);
  for (auto at = text.find(file); at != std::string::npos; at = text.find(file)) {
    text.replace(at, file.size(), "run.json");
  }
  const std::string expected =
      R"(train_batch_size                 8                  run.json:2:23
train_micro_batch_size_per_gpu   4                  derived: train_batch_size / (gradient_accumulation_steps 1 × 2 data-parallel ranks)
gradient_accumulation_steps      1                  derived: 1 where only one batch size is given
gradient_clipping                1                  default (DeepSpeed 0.19; releases before mid-2026 did not clip)
bf16.enabled                     false              default
fp16.enabled                     false              default
fp8.enabled                      false              default
data_types.grad_accum_dtype      "fp32"             default
communication_data_type          "fp32"             derived: as accumulated
prescale_gradients               false              default
gradient_predivide_factor        1                  default
zero_optimization.stage          0                  default
zero_optimization.overlap_comm   true               default
zero_optimization.offload_optimizer.device "none"    default
zero_optimization.offload_param.device "none"        default
activation_checkpointing.granularity "none"         default
activation_checkpointing.partition_activations false default
activation_checkpointing.cpu_checkpointing false     default
optimizer.type                   "AdamW"            run.json:3:26
optimizer.params.lr              0.0001             --set
optimizer.params.betas           [0.9, 0.999]       default
optimizer.params.eps             1e-08              default
optimizer.params.weight_decay    0                  default
optimizer.params.decay           "matrices"         default: norms and biases do not decay; DeepSpeed's rule is "all"
optimizer.params.bias_correction true               default
pipeline.stages                  1                  default
pipeline.schedule                "1f1b"             default
pipeline.virtual_stages          1                  default
context_parallel.size            1                  default
context_parallel.order           "zigzag"           default
expert_parallel.size             1                  default
tensor_parallel.size             1                  default
tensor_parallel.sequence_parallel false             default
steps_per_print                  10                 default
wall_clock_breakdown             false              default
tensorboard.enabled              false              default
tensorboard.output_path          ""                 default
tensorboard.job_name             ""                 default
csv_monitor.enabled              false              default
csv_monitor.output_path          ""                 default
csv_monitor.job_name             ""                 default
wandb.enabled                    false              default
wandb.project                    "dstrain"          default
wandb.group                      ""                 default
wandb.team                       ""                 default
model.model_type                 "llama"            run.json:5:19
model.vocab_size                 256                run.json:5:42
model.hidden_size                64                 run.json:5:62
model.intermediate_size          96                 run.json:5:87
model.num_hidden_layers          2                  run.json:6:26
model.num_attention_heads        4                  run.json:6:52
model.num_key_value_heads        2                  run.json:6:78
model.head_dim                   16                 derived: hidden_size / num_attention_heads
model.max_position_embeddings    128                run.json:7:32
model.rms_norm_eps               1e-06              default
model.rope_theta                 10000              default
model.hidden_act                 "silu"             default
model.attention_bias             false              default
model.mlp_bias                   false              default
model.attention_dropout          0                  default
model.tie_word_embeddings        false              default
model.initializer_range          0.02               default
data.train                       "data/train"       run.json:9:22
data.validation                  "data/validation"  run.json:9:50
data.sequence_length             128                derived: the model's longest sequence
data.document_attention          false              default
data.mask_document_ends          false              default
data.pack                        "none"             default
data.samples                     false              default
data.long_samples                "cut"              default
data.tokenizer                   ""                 default
data.chat_template               ""                 default
data.train_on                    "assistant"        default
data.answers_begin               "prompt"           default
data.stop_token                  ""                 default
data.weights_by                  "samples"          default
training.steps                   10                 run.json:10:26
training.seed                    1234               default
training.eval_interval           0                  default
training.eval_batches            16                 default
training.device                  "cpu"              derived: for machines that were not examined
training.tf32                    false              default
training.attention               "own"              default
training.matmul_algorithms       "auto"             default
training.block_order             "horizontal"       default
training.neftune_noise_alpha     0                  default
training.cuda_graphs             false              default
training.output_dir              "runs/tiny"        run.json:10:44
training.max_consecutive_skips   5                  default
training.replica_check_interval  "auto"             default
training.trace.ranks             "all"              default
checkpoint.interval              0                  default
checkpoint.keep                  2                  default
checkpoint.resume                "auto"             default
checkpoint.on_save_failure       "stop"             default
checkpoint.async                 false              default
network.security                 "authenticated"    default
gradient_compression.kind        "none"             default
)";
  // Columns are two blanks apart; the sample above keeps one where the path is the longest.
  const auto squeeze = [](const std::string& lines) {
    std::string result;
    for (const char c : lines) {
      if (c != ' ' || result.empty() || result.back() != ' ') result += c;
    }
    return result;
  };
  CHECK(squeeze(text) == squeeze(expected));
}

TEST_CASE("the shipped configs load and resolve", "[spec][configs]") {
  std::size_t num_configs = 0;
  for (const auto& entry : std::filesystem::directory_iterator("configs")) {
    const std::string file = entry.path().string();
    INFO(file);
    LoadedConfig loaded = load_config(file, {});
    const int ranks =  // of two copies of the model
        2 * loaded.config.tensor_parallel.size * loaded.config.pipeline.stages *
        loaded.config.context_parallel.size;
    resolve_config(loaded, ranks);
    CHECK(loaded.notices.empty());
    CHECK(run_again(loaded, ranks).config == loaded.config);
    CHECK(loaded.config.training.output_dir == "runs/" + entry.path().stem().string());
    ++num_configs;
  }
  CHECK(num_configs >= 3);
}

TEST_CASE("the quickstart trains a byte-level model of 5 to 12 million parameters",
          "[spec][configs]") {
  const LoadedConfig loaded = load_config("configs/quickstart.json", {});
  CHECK(loaded.config.model.vocab_size == 256);
  CHECK(num_parameters(loaded.config.model) > 5'000'000);
  CHECK(num_parameters(loaded.config.model) < 12'000'000);
  CHECK(loaded.config.data.train.at(0).prefix == "data/headers/train");
  CHECK(loaded.config.data.validation.at(0).prefix == "data/headers/validation");
  const LoadedConfig gpt2 = load_config("configs/gpt2-124m.json", {});
  CHECK(num_parameters(gpt2.config.model) == 124'439'808);
}

}  // namespace dstrain
