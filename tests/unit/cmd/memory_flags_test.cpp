// Flags that stand for keys: what they say of the shipped configs, as a user types them.
#include "cmd/memory/memory_flags.h"

#include <algorithm>

#include <CLI/CLI.hpp>
#include <catch2/catch.hpp>

#include "engine/config/config_error.h"
#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using Strings = std::vector<std::string>;

EstimateFlags parsed(Strings arguments) {
  CLI::App app;
  EstimateFlags flags;
  add_estimate_flags(app, flags);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  app.parse(arguments);
  return flags;
}

Config resolved(const Strings& arguments, int ranks) {
  const EstimateFlags flags = parsed(arguments);
  return load_and_resolve(flags, to_overrides(flags), ranks).config;
}

std::string error_of(const Strings& arguments, int ranks = 1) {
  return config_error_of([&] { resolved(arguments, ranks); });
}

const std::string kLlama70b = "configs/llama-70b-tp8-pp8.json";
const std::string kQuickstart = "configs/quickstart.json";

/// kTinyConfig with another batch block.
struct Run {
  explicit Run(const std::string& batch) {
    std::string text(kTinyConfig);
    const std::string line = "\"train_batch_size\": 8,";
    text.replace(text.find(line), line.size(), batch);
    file = folder.write("run.json", text);
  }
  TemporaryFolder folder;
  std::string file;
};

/// train, micro-batch, accumulation over `ranks` data-parallel ranks.
std::string batch_of(const std::string& batch, Strings arguments, int ranks = 2) {
  const Run run(batch);
  arguments.insert(arguments.begin(), run.file);
  const BatchConfig solved = resolved(arguments, ranks).batch;
  return fmt::format("{} {} {}", *solved.train_batch_size, *solved.micro_batch_size,
                     *solved.gradient_accumulation_steps);
}

}  // namespace

TEST_CASE("each flag is short for --set of its key", "[cmd][memory]") {
  CHECK(to_overrides(parsed({kQuickstart})) == Strings{});
  CHECK(to_overrides(parsed({kQuickstart, "--zero", "3", "--sequence-length", "256",
                             "--tensor-parallel", "2", "--sequence-parallel", "--pipeline", "3",
                             "--recompute", "full", "--set", "training.steps=5"})) ==
        Strings{"zero_optimization.stage=3", "data.sequence_length=256", "tensor_parallel.size=2",
                "tensor_parallel.sequence_parallel=true", "pipeline.stages=3",
                "activation_checkpointing.granularity=\"full\"", "training.steps=5"});
  const Config config =
      resolved({kQuickstart, "--zero=3", "--sequence-length=256", "--tensor-parallel=2",
                "--sequence-parallel", "--pipeline=3", "--recompute=full"},
               12);
  CHECK(config.zero.stage == 3);
  CHECK(config.data.sequence_length == 256);
  CHECK(config.tensor_parallel == TensorParallelConfig{.size = 2, .sequence_parallel = true});
  CHECK(config.pipeline.stages == 3);
  CHECK(config.recompute.granularity == RecomputeGranularity::kFull);
  CHECK_FALSE(
      resolved({kLlama70b, "--no-sequence-parallel"}, 64).tensor_parallel.sequence_parallel);
}

TEST_CASE("a micro-batch of its own keeps the size of the step", "[cmd][memory]") {
  CHECK(batch_of(R"("train_batch_size": 24,)", {"--micro-batch", "4"}) == "24 4 3");
  CHECK(batch_of(R"("train_batch_size": 24, "train_micro_batch_size_per_gpu": 2,
                    "gradient_accumulation_steps": 6,)",
                 {"--micro-batch", "4"}) == "24 4 3");
  CHECK(batch_of(R"("train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 6,)",
                 {"--micro-batch", "4"}) == "48 4 6");
  CHECK(batch_of(R"("train_micro_batch_size_per_gpu": 2,)", {"--micro-batch", "4"}) == "8 4 1");
  const BatchConfig shipped = resolved({kLlama70b, "--micro-batch", "4"}, 128).batch;
  CHECK(shipped == BatchConfig{960, 4, 120});
}

TEST_CASE("an accumulation of its own keeps the micro-batch", "[cmd][memory]") {
  CHECK(batch_of(R"("train_batch_size": 24,)", {"--accumulation", "4"}) == "24 3 4");
  CHECK(batch_of(R"("train_batch_size": 24, "train_micro_batch_size_per_gpu": 2,
                    "gradient_accumulation_steps": 6,)",
                 {"--accumulation", "4"}) == "16 2 4");
  CHECK(batch_of(R"("train_batch_size": 24,)", {"--accumulation", "4", "--micro-batch", "5"}) ==
        "40 5 4");
}

TEST_CASE("a batch key that --set gives stands beside the flags", "[cmd][memory]") {
  const std::string whole = R"("train_batch_size": 24, "train_micro_batch_size_per_gpu": 2,
                               "gradient_accumulation_steps": 6,)";
  CHECK(batch_of(whole, {"--micro-batch", "4", "--set", "train_batch_size=64"}) == "64 4 8");
  CHECK(batch_of(whole, {"--accumulation", "4", "--set", "train_batch_size=64"}) == "64 8 4");
  CHECK(batch_of(whole, {"--micro-batch", "4", "--set", "gradient_accumulation_steps=5"}) ==
        "40 4 5");
  const Run run(whole);
  CHECK_THAT(error_of({run.file, "--micro-batch", "4", "--accumulation", "2", "--set",
                       "train_batch_size=5"}),
             Contains("train_batch_size: 5 contradicts"));
  // Without flags --set means what it always does.
  CHECK_THAT(error_of({run.file, "--set", "train_batch_size=5"}, 2),
             Contains("train_batch_size: 5 contradicts"));
}

TEST_CASE("a precision switches the others off", "[cmd][memory]") {
  CHECK(resolved({kLlama70b, "--precision", "fp16"}, 64).precision == Precision::kF16);
  CHECK(resolved({kLlama70b, "--precision", "fp32"}, 64).precision == Precision::kF32);
  const Run f16(R"("train_batch_size": 8, "fp16": {"enabled": true, "loss_scale": 128},)");
  CHECK(resolved({f16.file}, 1).precision == Precision::kF16);
  CHECK(resolved({f16.file, "--precision", "bf16"}, 1).precision == Precision::kBF16);
  CHECK(resolved({f16.file, "--precision", "fp32"}, 1).precision == Precision::kF32);
  const Run old_name(R"("train_batch_size": 8, "bfloat16": {"enabled": true},)");
  CHECK(resolved({old_name.file, "--precision", "fp32"}, 1).precision == Precision::kF32);
  CHECK_THROWS_WITH(parsed({kQuickstart, "--precision", "fp8"}), Contains("bf16"));
  // A format that the file asks for and the precision has not is not dropped in silence.
  const Run formats(
      R"("train_batch_size": 8, "bf16": {"enabled": true, "bf16_optimizer_states": true},)");
  CHECK_THAT(error_of({formats.file, "--precision", "fp16"}),
             Contains("bf16.bf16_optimizer_states: true is refused"));
}

TEST_CASE("another optimizer takes the file's parameters with it", "[cmd][memory]") {
  const std::string sgd = "optimizer={\"type\": \"SGD\", \"params\": {\"momentum\": 0.5}}";
  const Config other = resolved({kLlama70b, "--optimizer", "sgd"}, 64);
  CHECK(other.optimizer == OptimizerConfig{.kind = OptimizerKind::kSgd});
  CHECK(resolved({kLlama70b, "--optimizer", "SGD", "--set", "optimizer.params.momentum=0.9"}, 64)
            .optimizer.momentum == 0.9);
  CHECK(resolved({kLlama70b, "--optimizer", "AdamW"}, 64).optimizer.beta2 == 0.95);
  CHECK_THAT(error_of({kQuickstart, "--set", sgd, "--optimizer", "AdamW"}),
             Contains("--optimizer: optimizer.type: given by --set as well"));
  CHECK_THAT(error_of({kQuickstart, "--optimizer", "Adan"}), Contains("did you mean \"Adam\"?"));
}

TEST_CASE("a key is given by a flag or by --set, not by both", "[cmd][memory]") {
  CHECK(error_of({kQuickstart, "--zero", "2", "--set", "zero_optimization.stage=2"}) ==
        "--zero: zero_optimization.stage: given by --set as well: leave one out");
  CHECK_THAT(error_of({kQuickstart, "--precision", "fp32", "--set", "bf16={\"enabled\": true}"}),
             Contains("--precision: bf16.enabled: given by --set as well"));
  CHECK_THAT(error_of({kQuickstart, "--zero", "7"}),
             Contains("--set zero_optimization.stage=7: zero_optimization.stage: must be"));
}

TEST_CASE("the flags say of a model's folder what its stand-ins would", "[cmd][memory]") {
  const TemporaryFolder folder;
  folder.write("config.json", R"({"model_type": "llama", "vocab_size": 256, "hidden_size": 64,
      "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
      "num_key_value_heads": 4, "max_position_embeddings": 4096, "torch_dtype": "bfloat16"})");
  const EstimateFlags flags =
      parsed({folder.path(), "--micro-batch", "3", "--sequence-length", "4096", "--precision",
              "fp32", "--optimizer", "Lion", "--pipeline", "2", "--accumulation", "8"});
  const LoadedConfig loaded = load_and_resolve(flags, to_overrides(flags), 4);
  CHECK(loaded.config.batch == BatchConfig{48, 3, 8});
  CHECK(loaded.config.data.sequence_length == 4096);
  CHECK(loaded.config.precision == Precision::kF32);
  CHECK(loaded.config.optimizer.kind == OptimizerKind::kLion);
  CHECK_THAT(loaded.notices.at(0),
             Catch::EndsWith("replaces: data.train=\"stand-in\" (no effect on memory), "
                             "training.steps=1 (no effect on memory)"));
}

TEST_CASE("hosts are counted, not contacted", "[cmd][memory]") {
  const auto shape = [](const Strings& arguments) {
    std::string text;
    for (const launcher::Host& host : estimated_hosts(parsed(arguments))) {
      text += fmt::format("{}:{} ", host.name, host.slots.size());
    }
    return text;
  };
  CHECK(shape({kQuickstart}) == "node1:1 ");
  CHECK(shape({kQuickstart, "--num_nodes", "2", "--num_gpus", "8"}) == "node1:8 node2:8 ");
  CHECK(estimated_hosts(parsed({kQuickstart, "--hostfile", "hostfiles/48-hosts.example"})).size() ==
        48);
  CHECK(shape({kQuickstart, "--hostfile", "hostfiles/48-hosts.example", "--num_nodes", "1",
               "--num_gpus", "4"}) == "node1:4 ");
}

TEST_CASE("ranks are handed the flags by which the config was read", "[cmd]") {
  const RunFlags flags{.config = "run.json",
                       .overrides = {"training.steps=3"},
                       .allow_unknown_keys = true,
                       .allow_tokenizer_mismatch = true,
                       .ignore_offload = true,
                       .metrics_at = HostAndPort{.host = "127.0.0.1", .port = 9400}};
  CHECK(to_arguments(flags) == Strings{"--set=training.steps=3", "--allow-unknown-keys",
                                       "--allow-tokenizer-mismatch", "--ignore-offload",
                                       "--metrics-port=127.0.0.1:9400", "--", "run.json"});
  CHECK(to_arguments({.config = "run.json"}) == Strings{"--", "run.json"});
}

}  // namespace dstrain
