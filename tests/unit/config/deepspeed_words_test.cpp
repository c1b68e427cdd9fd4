// Words of DeepSpeed's users that mean something by more than the letter: "auto", quoted numbers,
// Infinity, comments, other programs' keys, old names, and what only a Python script does.
#include <algorithm>

#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using Strings = std::vector<std::string>;

constexpr const char* kTrainer = "default (Hugging Face's Trainer)";

const MachineFacts kPlainCpu;
const MachineFacts kAmx{.name = "Xeon", .multiplies_bf16 = true};
const MachineFacts kAmpere{
    .cuda = true, .name = "A100", .multiplies_bf16 = true, .multiplies_f16 = true};
const MachineFacts kVolta{.cuda = true, .name = "V100", .multiplies_f16 = true};

LoadedConfig resolved(const Strings& overrides, const MachineFacts& facts = {}) {
  LoadedConfig loaded = load_tiny(overrides);
  resolve_config(loaded, 1, facts);
  return loaded;
}

bool tells(const Strings& lines, const std::string& part) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

/// The tiny config without its optimizer, with text of the test's own at its head.
std::string with_head(const std::string& head) {
  std::string text(kTinyConfig);
  const std::string optimizer = R"(  "optimizer": { "type": "AdamW", "params": { "lr": 1e-3 } },)";
  text.erase(text.find(optimizer), optimizer.size());
  return text.insert(1, head);
}

}  // namespace

TEST_CASE("\"auto\" is what Hugging Face's Trainer puts there", "[spec][words]") {
  const LoadedConfig loaded = resolved(
      {R"(optimizer={"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                                 "weight_decay": "auto"}})",
       R"(scheduler={"type": "WarmupDecayLR", "params": {"total_num_steps": "auto",
           "warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto",
           "warmup_type": "auto"}})",
       "gradient_clipping=auto"});
  const Config& c = loaded.config;
  CHECK(c.optimizer == OptimizerConfig{.learning_rate = 5e-5});
  CHECK(c.scheduler.warmup_num_steps == 0);
  CHECK(c.scheduler.warmup_min_lr == 0);
  CHECK(c.scheduler.warmup_max_lr == 5e-5);
  CHECK(c.scheduler.total_num_steps == 10);
  CHECK(c.gradient_clipping == 1.0);
  for (const char* path : {"optimizer.params.lr", "optimizer.params.betas", "optimizer.params.eps",
                           "optimizer.params.weight_decay", "scheduler.params.warmup_num_steps",
                           "scheduler.params.warmup_min_lr", "gradient_clipping"}) {
    INFO(path);
    CHECK(origin_of(loaded, path) == kTrainer);
  }
  CHECK(origin_of(loaded, "scheduler.params.warmup_max_lr") == "derived: optimizer.params.lr");
  CHECK(origin_of(loaded, "scheduler.params.total_num_steps") == "derived: training.steps");
}

TEST_CASE("every key of DeepSpeed's may be \"auto\" or null, dstrain's own keep their word",
          "[spec][words]") {
  for (const char* word : {"auto", "null"}) {
    for (const char* path :
         {"optimizer", "scheduler", "fp16", "bf16.enabled", "amp.enabled", "steps_per_print",
          "zero_optimization.stage", "zero_optimization.reduce_bucket_size", "prescale_gradients",
          "zero_optimization.stage3_gather_16bit_weights_on_model_save", "wall_clock_breakdown",
          "zero_optimization.offload_param.buffer_size", "zero_optimization.offload_optimizer",
          "communication_data_type", "tensor_parallel.autotp_size", "elasticity.enabled"}) {
      INFO(path << "=" << word);
      CHECK(error_of_tiny({std::string(path) + "=" + word}).empty());
    }
  }
  CHECK_THAT(error_of_tiny({"training.seed=auto"}), Contains("write an integer of at least 0"));
  CHECK_THAT(error_of_tiny({"model.initial_weights=auto"}), Contains("write a string"));
}

TEST_CASE("a precision that is \"auto\" is what the machine multiplies in units of its own",
          "[spec][words]") {
  const auto precision = [](const Strings& overrides, const MachineFacts& facts) {
    return resolved(overrides, facts).config.precision;
  };
  const Strings both = {"bf16.enabled=auto", "fp16.enabled=auto"};
  CHECK(precision(both, kPlainCpu) == Precision::kF32);
  CHECK(precision(both, kAmx) == Precision::kBF16);
  CHECK(precision(both, kAmpere) == Precision::kBF16);
  CHECK(precision(both, kVolta) == Precision::kF16);
  const Strings f16 = {"fp16.enabled=auto"};
  CHECK(precision(f16, kAmpere) == Precision::kBF16);
  CHECK(precision(f16, kVolta) == Precision::kF16);
  const Strings bf16 = {"bf16.enabled=auto"};
  CHECK(precision(bf16, kAmpere) == Precision::kBF16);
  CHECK(precision(bf16, kVolta) == Precision::kF32);
  // Explicit values win over open ones.
  for (const MachineFacts& facts : {kPlainCpu, kAmpere, kVolta}) {
    CHECK(precision({"bf16.enabled=true", "fp16.enabled=auto"}, facts) == Precision::kBF16);
    CHECK(precision({"bf16.enabled=auto", "fp16.enabled=true"}, facts) == Precision::kF16);
  }
  CHECK(precision({"bf16.enabled=false", "fp16.enabled=auto"}, kAmpere) == Precision::kF16);
  CHECK(precision({"bf16.enabled=auto", "fp16.enabled=false"}, kAmpere) == Precision::kBF16);
  CHECK(precision({"bf16.enabled=auto", "fp16.enabled=false"}, kVolta) == Precision::kF32);
}

TEST_CASE("an open precision says what decided it, and only its own settings count",
          "[spec][words]") {
  const Strings open = {"bf16.enabled=auto",
                        R"(fp16={"enabled": "auto", "initial_scale_power": 9, "hysteresis": 3})",
                        "zero_optimization.stage=1"};
  const LoadedConfig volta = resolved(open, kVolta);
  CHECK(volta.config.loss_scale.initial_scale_power == 9);
  CHECK(volta.config.loss_scale.hysteresis == 3);
  CHECK(value_of_path(volta, "fp16.enabled") == "true");
  CHECK(origin_of(volta, "fp16.enabled") == "derived: V100 has units for products in fp16");
  CHECK(tells(volta.notices, "precision: fp16, since V100 has units"));
  const LoadedConfig cpu = resolved(open, kPlainCpu);
  CHECK(cpu.config.loss_scale == LossScaleConfig{});
  CHECK(value_of_path(cpu, "fp16.enabled") == "false");
  CHECK(value_of_path(cpu, "fp16.hysteresis").empty());
  CHECK(origin_of(cpu, "bf16.enabled") ==
        "derived: this machine has no units for products in bf16 or fp16");
  CHECK_FALSE(tells(cpu.notices, "no effect"));
  // Formats of a precision that it does not become.
  const LoadedConfig dropped =
      resolved({"bf16.enabled=auto", "bf16.bf16_master_weights_and_grads=true",
                "communication_data_type=bf16"},
               kPlainCpu);
  CHECK(dropped.config.formats.communication == DType::kF32);
  CHECK_FALSE(dropped.config.formats.bf16_master);
  CHECK(tells(dropped.notices, "no effect: communication_data_type: the model computes in fp32"));
}

TEST_CASE("without an optimizer it is the Trainer's, and that is reported", "[spec][words]") {
  const LoadedConfig loaded = load_text(with_head(""));
  CHECK(loaded.config.optimizer == OptimizerConfig{.learning_rate = 5e-5});
  CHECK(origin_of(loaded, "optimizer.type") == kTrainer);
  CHECK(origin_of(loaded, "optimizer.params.lr") == kTrainer);
  CHECK(tells(loaded.notices, "optimizer: none is written: AdamW, as Hugging Face's Trainer"));
  const LoadedConfig faster = load_text(with_head(""), {.overrides = {"optimizer.params.lr=3e-4"}});
  CHECK(faster.config.optimizer.learning_rate == 3e-4);
  CHECK(origin_of(faster, "optimizer.params.lr") == "--set");
  // A type without params has DeepSpeed's defaults.
  CHECK(load_tiny({R"(optimizer={"type": "AdamW"})"}).config.optimizer.learning_rate == 1e-3);
}

TEST_CASE("without a batch it is the Trainer's micro-batch, and that is reported",
          "[spec][words]") {
  const LoadedConfig loaded = resolved({"train_batch_size=auto"});
  CHECK(loaded.config.batch.micro_batch_size == 8);
  CHECK(origin_of(loaded, "train_micro_batch_size_per_gpu") == kTrainer);
  CHECK(tells(loaded.notices, "train_micro_batch_size_per_gpu: 8, default (Hugging Face's"));
}

TEST_CASE("numbers and switches may be written in another type", "[spec][words]") {
  const LoadedConfig loaded =
      load_tiny({R"(optimizer.params={"lr": "3e-4", "betas": ["0.8", 0.9], "eps": "1e-6"})",
                 R"(zero_optimization={"stage": "3", "overlap_comm": "False",
                                       "stage3_max_live_parameters": "1e9",
                                       "stage3_max_reuse_distance": 2e16})",
                 R"(train_batch_size=" 16 ")", "prescale_gradients=1", R"(bf16.enabled="true")",
                 "steps_per_print=20000000000000000"});
  CHECK(loaded.config.optimizer.learning_rate == 3e-4);
  CHECK(loaded.config.optimizer.beta1 == 0.8);
  CHECK(loaded.config.optimizer.epsilon == 1e-6);
  CHECK(loaded.config.zero.stage == 3);
  CHECK_FALSE(loaded.config.zero.overlap_comm);
  CHECK(loaded.config.zero.max_live_parameters == 1'000'000'000);
  CHECK(loaded.config.zero.max_reuse_distance == 20'000'000'000'000'000);
  CHECK(loaded.config.batch.train_batch_size == 16);
  CHECK(loaded.config.formats.prescale_gradients);
  CHECK(loaded.config.precision == Precision::kBF16);
  CHECK(loaded.config.steps_per_print == 20'000'000'000'000'000);
  CHECK(value_of_path(loaded, "optimizer.params.lr") == "0.0003");
  // Where there is doubt they are not.
  CHECK_THAT(error_of_tiny({R"(train_batch_size="16 or so")"}), Contains("must be an integer"));
  CHECK_THAT(error_of_tiny({"train_batch_size=true"}), Contains("must be an integer"));
  CHECK_THAT(error_of_tiny({"train_batch_size=1.5"}), Contains("must be an integer"));
  CHECK_THAT(error_of_tiny({"prescale_gradients=2"}), Contains("must be true or false"));
  CHECK_THAT(error_of_tiny({R"(prescale_gradients="maybe")"}), Contains("must be true or false"));
}

TEST_CASE("Infinity is the largest of counts, and no rate", "[spec][words]") {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  const LoadedConfig loaded = load_text(with_head(R"(
    "steps_per_print": Infinity, // never
    "zero_optimization": {"stage": 3, "stage3_max_live_parameters":Infinity},)"));
  CHECK(loaded.config.steps_per_print == kLargest);
  CHECK(loaded.config.zero.max_live_parameters == kLargest);
  CHECK(value_of_path(loaded, "steps_per_print") == std::to_string(kLargest));
  CHECK(load_tiny({"steps_per_print=Infinity"}).config.steps_per_print == kLargest);
  CHECK(load_tiny({"zero_optimization.stage=3", "zero_optimization.max_live_parameters=1e30"})
            .config.zero.max_live_parameters == kLargest);
  CHECK_THAT(
      error_of_text(with_head("\n \"gradient_clipping\": NaN,")),
      Contains("run.json:2:23: gradient_clipping: must be a number") && Contains("found NaN"));
  CHECK_THAT(error_of_text(with_head("\n \"gradient_clipping\": -Infinity,")),
             Contains("found -Infinity"));
  CHECK_THAT(error_of_text(with_head("\"train_micro_batch_size_per_gpu\": Infinity,")),
             Contains("must be an integer"));
  // Only in the place of a value, and not within words or strings.
  CHECK_THAT(error_of_text(with_head("\"gradient_clipping\": Infinityx,")),
             Contains("expected a value"));
  CHECK(load_text(with_head(R"("_comment": "Infinity, NaN",)")).config ==
        load_text(with_head("")).config);
}

TEST_CASE("comments and GPT-NeoX's arguments are named as what they are", "[spec][words]") {
  const LoadedConfig commented =
      load_tiny({R"(_comment="x")", R"(comment_2="y")", R"(optimizer.params._note="z")"});
  CHECK(commented.notices ==
        Strings{"no effect: optimizer.params._note, _comment, comment_2: comments"});
  const Strings neox = {"pipe-parallel-size=1", "hidden-size=768", "train-iters=9",
                        "pos-emb=rotary",       "min_lr=1e-5",     "launcher=slurm"};
  const LoadedConfig loaded = load_tiny(neox);
  REQUIRE(loaded.notices.size() == 1);
  CHECK(loaded.notices.front() ==
        "no effect: pipe-parallel-size, hidden-size, train-iters, pos-emb, min_lr, launcher: "
        "GPT-NeoX's Python code reads them, not DeepSpeed");
  // In a file of anybody else's they are slips.
  CHECK_THAT(error_of_tiny({"min_lr=1e-5"}), Contains("unknown key"));
  CHECK_THAT(error_of_tiny({"num-layers=4", "seq_length=8"}), Contains("unknown key"));
  CHECK_THAT(error_of_tiny(
                 {"pipe-parallel-size=1", "train-iters=9", "pos-emb=rotary", "gradient_clippin=1"}),
             Contains("unknown key, did you mean \"gradient_clipping\"?"));
}

TEST_CASE("what only Python does is reported, with a warning where it would change the training",
          "[spec][words]") {
  const LoadedConfig told = load_tiny({R"(compile={"disable": false})", R"(log={"level": 3})",
                                       "cuda_visible_devices=0", R"(comms_config={"x": 1})"});
  CHECK(told.notices.size() == 4);
  CHECK(told.warnings.empty());
  for (const char* block :
       {R"(compression_training={"x": {"shared": {"enabled": true}}})",
        R"(data_efficiency={"enabled": true})", R"(progressive_layer_drop={"enabled": 1})",
        R"(sparse_attention={"mode": "fixed", "block": 16})"}) {
    INFO(block);
    const LoadedConfig loaded = load_tiny({block});
    CHECK(loaded.notices.empty());
    REQUIRE(loaded.warnings.size() == 1);
    CHECK_THAT(loaded.warnings.front(),
               Catch::StartsWith("not done: " + std::string(block).substr(0, 8)) &&
                   Contains("trains without"));
  }
  const LoadedConfig off = load_tiny({R"(compression_training={"x": {"enabled": false}})",
                                      R"(data_efficiency={"enabled": "false"})",
                                      R"(wandb={"enabled": 0})", "tensorboard.enabled=false"});
  CHECK(off.warnings.empty());
  CHECK(tells(load_tiny({R"(comet={"enabled": true, "project": "x"})"}).warnings,
              "nothing is written for Comet"));
}

TEST_CASE("monitors are DeepSpeed's, and write into the run's folder by default", "[spec][words]") {
  const MonitorConfig off = load_tiny({}).config.monitors;
  CHECK_FALSE(off.tensorboard.enabled);
  CHECK_FALSE(off.csv.enabled);
  CHECK_FALSE(off.wandb.enabled);
  const LoadedConfig loaded =
      load_tiny({R"(tensorboard={"enabled": true, "output_path": "logs/", "job_name": "first"})",
                 R"(csv_monitor={"enabled": "true"})",
                 R"(wandb={"enabled": 1, "group": "g", "team": null, "project": "p"})"});
  CHECK(loaded.warnings.empty());
  const MonitorConfig& on = loaded.config.monitors;
  CHECK(on.tensorboard ==
        MonitorFolder{.enabled = true, .output_path = "logs/", .job_name = "first"});
  CHECK(on.csv == MonitorFolder{.enabled = true});
  CHECK(on.wandb == WandbConfig{.enabled = true, .project = "p", .group = "g"});
  CHECK_THAT(error_of_tiny({R"(wandb={"enabled": true, "projet": "p"})"}),
             Contains("wandb.projet: unknown key, did you mean \"project\"?"));
}

TEST_CASE("of autotuning's candidates the first is taken", "[spec][words]") {
  const std::string list = "zero_optimization.stage=[1, 2, 3]";
  const LoadedConfig loaded = load_tiny({R"(autotuning={"enabled": true})", list});
  CHECK(loaded.config.zero.stage == 1);
  CHECK(tells(loaded.notices, "zero_optimization.stage: 1, the first of the candidates [1, 2, 3]"));
  CHECK_THAT(error_of_tiny({list}), Contains("must be an integer in [0, 3], found a list"));
}

TEST_CASE("Apex and autocast are other words for fp16 and bf16", "[spec][words]") {
  const auto precision = [](const Strings& sets) { return load_tiny(sets).config.precision; };
  CHECK(precision({R"(amp={"enabled": true})"}) == Precision::kF16);
  CHECK(precision({R"(amp={"enabled": true, "opt_level": "O2", "loss_scale": "dynamic"})"}) ==
        Precision::kF16);
  CHECK(precision({R"(amp={"enabled": true, "opt_level": "O0"})"}) == Precision::kF32);
  CHECK(precision({R"(amp={"enabled": "auto", "opt_level": "auto"})"}) == Precision::kF32);
  CHECK(load_tiny({R"(amp={"enabled": true, "loss_scale": 128})"}).config.loss_scale.static_scale ==
        128);
  CHECK_THAT(error_of_tiny({R"(amp={"enabled": true, "opt_level": "O3"})"}),
             Contains("\"O3\" is refused"));
  CHECK_THAT(error_of_tiny({R"(amp={"enabled": true})", "bf16.enabled=true"}),
             Contains("amp.enabled: true, and bf16.enabled as well"));
  CHECK(precision({R"(torch_autocast={"enabled": true})"}) == Precision::kBF16);
  CHECK(precision({R"(torch_autocast={"enabled": true, "dtype": "torch.float16"})"}) ==
        Precision::kF16);
  CHECK(precision({R"(fp16={"enabled": true, "type": "bfloat16"})"}) == Precision::kBF16);
  CHECK(resolved({R"(fp16={"enabled": "auto", "type": "bfloat16"})"}, kVolta).config.precision ==
        Precision::kF32);
  const LoadedConfig told = load_tiny({R"(amp={"enabled": true})"});
  CHECK(origin_of(told, "fp16.enabled") == "derived: amp.enabled");
  CHECK(tells(told.notices, "amp.enabled: Apex's O1 computes in fp16 with a dynamic loss scale"));
}

TEST_CASE("old and borrowed names are known", "[spec][words]") {
  CHECK(load_tiny({"gradient_clipping=0.5", "optimizer.params.max_grad_norm=0.5"})
            .config.gradient_clipping == 0.5);
  CHECK(load_tiny({"optimizer.params.max_grad_norm=0.25"}).config.gradient_clipping == 0.25);
  CHECK_THAT(error_of_tiny({"gradient_clipping=0.5", "optimizer.params.max_grad_norm=1"}),
             Contains("given twice"));
  CHECK(load_tiny({"data_types.grad_accum_dtype=float32"}).config.formats.grad_accum ==
        DType::kF32);
  CHECK(load_tiny({"bfloat16.enabled=true", "bf16.loss_scale=0"}).config.precision ==
        Precision::kBF16);
  for (const char* known :
       {"zero_optimization.gather_16bit_weights_on_model_save=true",
        "zero_optimization.cpu_offload_params=false", "fp16.opt_level=O2", "fp16.fp16=true",
        R"(scheduler={"type": "WarmupLR", "params": {"last_batch_iteration": -1}})",
        "optimizer.params.cuda_aware=true", "optimizer.params.fused=true",
        "zero_optimization.zero_hpz_partition_size=8", "zero_optimization.sub_group_size=0"}) {
    INFO(known);
    CHECK(error_of_tiny({known}).empty());
  }
  // The key of another scheduler, which asks for nothing.
  CHECK(error_of_tiny({R"(scheduler={"type": "WarmupLR", "params": {"total_num_steps": "auto"}})"})
            .empty());
}

}  // namespace dstrain
