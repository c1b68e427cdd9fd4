// What a config may contain and what it may not, with the whole message where it matters.
#include "engine/config/config_json.h"

#include "tests/unit/config/config_text.h"

namespace dstrain {

using Catch::Matchers::Contains;

TEST_CASE("the values of a config arrive in their fields", "[spec][config]") {
  const Config c = load_text(R"({
    "train_batch_size": 64, "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": "auto", "gradient_clipping": 0.5,
    "bf16": {"enabled": true},
    "optimizer": {"type": "Adam", "params":
      {"lr": 6e-4, "betas": [0.8, 0.95], "eps": 1e-7, "weight_decay": 0.1, "bias_correction": false}},
    "scheduler": {"type": "WarmupCosineLR", "params":
      {"total_num_steps": 50, "warmup_num_steps": 20, "warmup_type": "linear",
       "warmup_min_ratio": 0.25, "cos_min_ratio": 0.125}},
    "steps_per_print": 7, "wall_clock_breakdown": true,
    "model": {"model_type": "qwen2", "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96,
      "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
      "max_position_embeddings": 128},
    "data": {"train": ["a", {"path": "b", "weight": 2.5}], "sequence_length": 32},
    "training": {"steps": 9, "seed": 5, "eval_interval": 3, "eval_batches": 4, "device": "cpu",
      "output_dir": "out"},
    "checkpoint": {"interval": 4, "keep": 1, "resume": "runs/x/checkpoints/step-00000004"}
  })")
                       .config;
  CHECK(c.batch.train_batch_size == 64);
  CHECK(c.batch.micro_batch_size == 8);
  CHECK_FALSE(c.batch.gradient_accumulation_steps.has_value());
  CHECK(c.gradient_clipping == 0.5);
  CHECK(c.precision == Precision::kBF16);
  CHECK(c.optimizer == OptimizerConfig{.learning_rate = 6e-4,
                                       .beta1 = 0.8,
                                       .beta2 = 0.95,
                                       .epsilon = 1e-7,
                                       .weight_decay = 0.1,
                                       .bias_correction = false});
  CHECK(c.scheduler.kind == SchedulerKind::kWarmupCosine);
  CHECK(c.scheduler.warmup_type == WarmupType::kLinear);
  CHECK(c.scheduler.warmup_num_steps == 20);
  CHECK(c.scheduler.total_num_steps == 50);
  CHECK(c.scheduler.warmup_min_ratio == 0.25);
  CHECK(c.scheduler.cos_min_ratio == 0.125);
  CHECK(c.steps_per_print == 7);
  CHECK(c.wall_clock_breakdown);
  CHECK(c.model.model_type == "qwen2");
  CHECK(c.model.vocab_size == 300);
  CHECK(c.model.num_layers == 3);
  REQUIRE(c.data.train.size() == 2);
  CHECK(c.data.train[0] == DataSource{.prefix = "a", .weight = 1.0});
  CHECK(c.data.train[1] == DataSource{.prefix = "b", .weight = 2.5});
  CHECK(c.data.validation.empty());
  CHECK(c.data.sequence_length == 32);
  CHECK(c.training.steps == 9);
  CHECK(c.training.seed == 5);
  CHECK(c.training.eval_interval == 3);
  CHECK(c.training.eval_batches == 4);
  CHECK(c.training.device == DeviceChoice::kCpu);
  CHECK(c.training.output_dir == "out");
  CHECK(c.checkpoint.interval == 4);
  CHECK(c.checkpoint.keep == 1);
  CHECK(c.checkpoint.resume == ResumeMode::kPath);
  CHECK(c.checkpoint.resume_path == "runs/x/checkpoints/step-00000004");
}

TEST_CASE("an unknown key names its place and the nearest known one", "[spec][config]") {
  CHECK(error_of_text("{\n  \"zero_optimization\": {\n    \"stge\": 1\n  }\n}") ==
        "run.json:3:5: zero_optimization.stge: unknown key, did you mean \"stage\"?");
  CHECK(error_of_text("{\"lr\": 1e-3}") ==
        "run.json:1:2: lr: unknown key, it belongs at \"optimizer.params.lr\"");
  CHECK(error_of_text("{\"xyzzyx\": 1}") == "run.json:1:2: xyzzyx: unknown key");
  CHECK(error_of_tiny({"data.train={\"pth\": \"x\"}"}) != "");
  CHECK(error_of_tiny({"data.train=[{\"path\": \"x\", \"wieght\": 2}]"}) ==
        "--set data.train=[{\"path\": \"x\", \"wieght\": 2}]: data.train.0.wieght: unknown key; a "
        "source has \"path\" and \"weight\"");
}

TEST_CASE("unknown keys become notices where they are allowed", "[spec][config]") {
  const LoadedConfig loaded =
      load_text(kTinyConfig, {.overrides = {"gradient_cliping=2"}, .allow_unknown_keys = true});
  REQUIRE(loaded.notices.size() == 1);
  CHECK(loaded.notices[0] ==
        "--set gradient_cliping=2: gradient_cliping: unknown key, ignored; did you mean "
        "\"gradient_clipping\"?");
  CHECK(loaded.config.gradient_clipping == 1.0);
}

TEST_CASE("a wrong type says what was expected and what was found", "[spec][config]") {
  CHECK(error_of_text("{\"train_batch_size\":\n   \"eight\"}") ==
        "run.json:2:4: train_batch_size: must be an integer of at least 1, found the string "
        "\"eight\"");
  CHECK_THAT(error_of_tiny({"train_batch_size=true"}), Contains("must be an integer"));
  CHECK_THAT(error_of_tiny({"train_batch_size=1.5"}), Contains("must be an integer"));
  CHECK_THAT(error_of_tiny({"train_batch_size=0"}), Contains("found 0"));
  CHECK_THAT(error_of_tiny({"optimizer.params.lr=1e-4x"}),
             Contains("must be a number greater than 0, found the string \"1e-4x\""));
  CHECK_THAT(error_of_tiny({"optimizer.params.lr=0"}), Contains("greater than 0, found 0"));
  CHECK_THAT(error_of_tiny({"optimizer.params.betas=[0.9, 1.0]"}),
             Contains("two numbers in [0, 1)"));
  CHECK_THAT(error_of_tiny({"optimizer.params.betas=0.9"}), Contains("two numbers in [0, 1)"));
  CHECK_THAT(error_of_tiny({"bf16.enabled=2"}), Contains("must be true or false, found 2"));
  CHECK_THAT(error_of_tiny({"bf16=true"}), Contains("bf16: must be an object"));
  CHECK_THAT(error_of_tiny({"training.device=gpu"}),
             Contains("must be \"auto\", \"cpu\" or \"cuda\", found the string \"gpu\""));
  CHECK_THAT(error_of_tiny({"training.steps=null"}), Contains("training.steps: missing"));
  CHECK_THAT(error_of_tiny({"training.steps=0"}), Contains("of at least 1, found 0"));
  CHECK_THAT(error_of_tiny({"training.seed=-1"}), Contains("of at least 0, found -1"));
  CHECK_THAT(error_of_tiny({"data.train=[]"}), Contains("the list is empty"));
  CHECK_THAT(error_of_tiny({"data.train=3"}), Contains("data.train: must be a path, or a list"));
  CHECK_THAT(error_of_tiny({"checkpoint.resume=false"}), Contains("must be a string"));
}

TEST_CASE("what a run cannot do without is named with an example", "[spec][config]") {
  CHECK(error_of_text("{\"optimizer\": {\"type\": \"AdamW\"}}") ==
        "run.json: model: missing: write the keys of a Hugging Face config.json, or the path of a "
        "folder that holds one");
  CHECK_THAT(
      error_of_text("{\"optimizer\": {\"type\": \"AdamW\"}, \"model\": {\"vocab_size\": 4}}"),
      Catch::StartsWith("run.json:1:43: model.model_type: missing"));
  CHECK_THAT(error_of_tiny({"data={}"}), Contains("data.train: missing"));
  CHECK_THAT(error_of_tiny({"training={}"}), Contains("training.steps: missing"));
}

TEST_CASE("what would change the training is refused with the reason", "[spec][config]") {
  const auto refused = [](const std::string& set, const std::string& reason) {
    INFO(set);
    const std::string error = error_of_tiny({set});
    CHECK_THAT(error, Contains("refused: "));
    CHECK_THAT(error, Contains(reason));
  };
  refused("pipeline.partition=uniform", "balances the stages by cost");
  refused("amp={\"enabled\": true, \"opt_level\": \"O3\"}", "fp16 weights");
  refused("gradient_allreduce_op=sum", "mean");
}

TEST_CASE("features that are off may be mentioned", "[spec][config]") {
  const LoadedConfig loaded = load_tiny(
      {"zero_optimization.stage=0", "zero_optimization.offload_param={\"device\": \"none\"}",
       "fp16={\"enabled\": false, \"loss_scale\": 0, \"initial_scale_power\": 16}",
       "tensor_parallel={\"size\": 1, \"autotp_size\": 0}", "pipeline.stages=auto",
       "activation_checkpointing.granularity=none", "amp={\"enabled\": false}", "wandb={}",
       "compression_training={\"x\": {\"enabled\": false}}", "tensorboard.enabled=false",
       "optimizer.type=adamw", "optimizer.params.adam_w_mode=true", "scheduler=null"});
  CHECK(loaded.notices.empty());
  CHECK(loaded.config == load_tiny({}).config);
}

TEST_CASE("keys without effect are reported once, by reason", "[spec][config]") {
  const LoadedConfig loaded =
      load_tiny({"zero_optimization={\"reduce_bucket_size\": 5e8, \"allgather_bucket_size\": 5e8, "
                 "\"stage3_prefetch_bucket_size\": \"auto\"}",
                 "dump_state=true"});
  REQUIRE(loaded.notices.size() == 2);
  CHECK(loaded.notices[0] == "no effect: dump_state: --print-config prints every value");
  CHECK(loaded.notices[1] ==
        "no effect: zero_optimization.reduce_bucket_size, zero_optimization.allgather_bucket_size: "
        "the unit (a block, the embedding, the head) is the bucket: reduced as soon as backward "
        "leaves it, gathered at once, its memory planned");
}

TEST_CASE("a scheduler's parameters are its own", "[spec][config]") {
  CHECK_THAT(
      error_of_tiny({"scheduler={\"type\": \"WarmupLR\", \"params\": {\"cos_min_ratio\": 0}}"}),
      Contains("cos_min_ratio: has no meaning for scheduler.type \"WarmupLR\": it belongs to "
               "WarmupCosineLR"));
  CHECK_THAT(error_of_tiny({"scheduler.params.warmup_num_steps=5"}),
             Contains("has no meaning for a scheduler without type"));
  CHECK_THAT(
      error_of_tiny({"scheduler={\"type\": \"LRRangeTest\", \"params\": {\"cycle_max_lr\": 1}}"}),
      Contains("cycle_max_lr: has no meaning for scheduler.type \"LRRangeTest\": it belongs to "
               "OneCycle"));
  CHECK_THAT(error_of_tiny({"scheduler.type=OneCycle"}),
             Contains("cycle_min_lr: missing: write the rate at both ends of the cycle"));
  CHECK_THAT(error_of_tiny({"scheduler.type=WarmupCosinLR"}),
             Contains("did you mean \"WarmupCosineLR\"?"));
}

TEST_CASE("--set changes the file before it is checked", "[spec][config]") {
  const LoadedConfig loaded =
      load_tiny({"optimizer.params.lr=1e-4", "training.output_dir=runs/other", "bf16.enabled=true",
                 "data.train=[\"a\", \"b\"]", "data.train.1=c", "data.train.2=d"});
  CHECK(loaded.config.optimizer.learning_rate == 1e-4);
  CHECK(loaded.config.training.output_dir == "runs/other");
  CHECK(loaded.config.precision == Precision::kBF16);
  REQUIRE(loaded.config.data.train.size() == 3);
  CHECK(loaded.config.data.train[1].prefix == "c");
  CHECK(loaded.config.data.train[2].prefix == "d");
  CHECK(origin_of(loaded, "optimizer.params.lr") == "--set");
  CHECK(origin_of(loaded, "optimizer.type").ends_with("run.json:3:26"));
  CHECK(error_of_tiny({"optimizer.parms.lr=1"}) ==
        "--set optimizer.parms.lr=1: optimizer.parms: unknown key, did you mean \"params\"?");
  CHECK(error_of_tiny({"nonsense"}) ==
        "--set nonsense: expected path=value, for example optimizer.params.lr=1e-4");
  CHECK_THAT(error_of_tiny({"data.train=[\"a\""}), Contains("begins like JSON but is not"));
  CHECK_THAT(error_of_tiny({"data.train=[\"a\"]", "data.train.5=x"}),
             Contains("expected an index from 0 to 1, found \"5\""));
  CHECK_THAT(error_of_tiny({"data.train.0=x"}), Contains("which has no \"0\""));
}

TEST_CASE("DeepSpeed's second names mean the same, and --set beats the file", "[spec][config]") {
  CHECK(load_tiny({"bfloat16.enabled=true"}).config.precision == Precision::kBF16);
  CHECK_THAT(error_of_tiny({"bfloat16.enabled=true", "bf16.enabled=false"}),
             Contains("given twice"));
  std::string text(kTinyConfig);
  text.insert(1, "\"bfloat16\": {\"enabled\": true},");
  CHECK(load_text(text).config.precision == Precision::kBF16);
  CHECK(load_text(text, {.overrides = {"bf16.enabled=false"}}).config.precision == Precision::kF32);
}

TEST_CASE("without an output_dir the run is named after its file", "[spec][config]") {
  const LoadedConfig loaded = load_tiny({"training={\"steps\": 3}"});
  CHECK(loaded.config.training.output_dir == "runs/run");
  CHECK_THAT(error_of_tiny({"training.output_dir="}), Contains("is empty"));
}

TEST_CASE("without a sequence_length it is the model's longest", "[spec][config]") {
  const LoadedConfig loaded = load_tiny({});
  CHECK(loaded.config.data.sequence_length == 128);
  CHECK(origin_of(loaded, "data.sequence_length") == "derived: the model's longest sequence");
}

}  // namespace dstrain
