// How ranks are divided, and what tensor, sequence and pipeline parallelism ask of the rest. The
// layouts that errors end with have a test of their own (nearest_layout_test.cpp).
#include <algorithm>

#include "tests/unit/config/parallel_text.h"

namespace dstrain {
namespace {

std::vector<std::string> notices_of(int ranks, const std::vector<std::string>& sets) {
  return resolved(ranks, sets).notices;
}

std::int64_t batch_of(int ranks, const std::vector<std::string>& sets) {
  return resolved(ranks, sets).config.batch.train_batch_size.value();
}

}  // namespace

TEST_CASE("only data-parallel ranks count in the batch", "[spec][parallel]") {
  CHECK(batch_of(8, {}) == 2 * 4 * 8);
  CHECK(batch_of(8, {"tensor_parallel.size=2"}) == 2 * 4 * 4);
  CHECK(batch_of(8, {kTwoStages}) == 2 * 4 * 4);
  CHECK(batch_of(8, {kTwoStages, "tensor_parallel.autotp_size=2"}) == 2 * 4 * 2);
  CHECK(batch_of(12, {kTwoStages, "tensor_parallel.size=6"}) == 2 * 4 * 1);
  CHECK(origin_of(resolved(8, {kTwoStages, "tensor_parallel.size=2"}), "train_batch_size") ==
        "derived: train_micro_batch_size_per_gpu × gradient_accumulation_steps × 2 data-parallel "
        "ranks");
}

TEST_CASE("degrees that do not divide the ranks name those that do", "[spec][parallel]") {
  CHECK(rule_of(8, {"tensor_parallel.size=3", kTwoStages}) ==
        "--set: tensor_parallel.size: 3 × pipeline.stages 2 = 6 does not divide the 8 ranks: run 6 "
        "or 12, or set tensor_parallel.size to 2");
  CHECK(rule_of(8, {"tensor_parallel.size=3"}) ==
        "--set: tensor_parallel.size: 3 does not divide the 8 ranks: run 6 or 9, or set "
        "tensor_parallel.size to 2");
  CHECK(rule_of(8, {"pipeline.stages=3"}) ==
        "--set: pipeline.stages: 3 does not divide the 8 ranks: run 6 or 9, or set "
        "pipeline.stages to 2 or 4");
  CHECK(rule_of(1, {"tensor_parallel.size=2"}) ==
        "--set: tensor_parallel.size: 2 does not divide the 1 rank: run 2, or set "
        "tensor_parallel.size to 1");
  CHECK(rule_of(12, {"tensor_parallel.size=4", kTwoStages}) ==
        "--set: tensor_parallel.size: 4 × pipeline.stages 2 = 8 does not divide the 12 ranks: run "
        "8 or 16, or set tensor_parallel.size to 3 or 6, or set pipeline.stages to 1 or 3");
}

TEST_CASE("stages that several chunks each would refuse are not proposed", "[spec][parallel]") {
  CHECK(rule_of(7, {kInterleaved}) ==
        "--set: pipeline.stages: 2 does not divide the 7 ranks: run 6 or 8");
  CHECK(rule_of(9, {kInterleaved}) ==
        "--set: pipeline.stages: 2 does not divide the 9 ranks: run 8 or 10, or set "
        "pipeline.stages to 3");
}

TEST_CASE("a tensor-parallel size has to fit the model's heads and columns", "[spec][parallel]") {
  CHECK(rule_of(8, {"tensor_parallel.size=8"}) ==
        "--set: tensor_parallel.size: 8 does not divide model.num_attention_heads 12, and a rank "
        "holds whole heads: set it to 2, which the 8 ranks allow as well");
  CHECK(rule_of(12, {"tensor_parallel.size=4"}) ==
        "--set: tensor_parallel.size: 4 neither divides model.num_key_value_heads 6 nor is a "
        "multiple of it, and a rank holds whole heads: set it to 3 or 6, which the 12 ranks allow "
        "as well");
  CHECK(rule_of(6, {"tensor_parallel.size=3", "model.intermediate_size=100"}) ==
        "--set: tensor_parallel.size: 3 does not divide model.intermediate_size 100, of which a "
        "rank holds an equal share: set it to 2, which the 6 ranks allow as well");
  CHECK(rule_of(3, {kGpt2, "tensor_parallel.size=3"}) ==
        "--set: tensor_parallel.size: 3 does not divide model.n_head 4, and a rank holds whole "
        "heads: set it to 1, which the 3 ranks allow as well");
  CHECK(rule_of(4, {kGpt2, "tensor_parallel.size=4"}) ==
        "--set: tensor_parallel.size: 4 does not divide model.n_inner 90, of which a rank holds an "
        "equal share: set it to 2, which the 4 ranks allow as well");
}

TEST_CASE("ranks may share key and value heads", "[spec][parallel]") {
  CHECK(batch_of(12, {"tensor_parallel.size=12"}) == 8);  // 6 key/value heads, 2 ranks each
  CHECK(batch_of(4, {"model.num_key_value_heads=1", "tensor_parallel.size=4"}) == 8);
  CHECK(batch_of(4, {"model.num_key_value_heads=2", "tensor_parallel.size=4"}) == 8);
}

TEST_CASE("optimizers that look at whole tensors refuse to see parts", "[spec][parallel]") {
  CHECK(
      rule_of(2, {"optimizer={\"type\": \"Muon\"}", "tensor_parallel.size=2"}) ==
      "--set: optimizer.type: \"Muon\" needs whole matrices, which tensor_parallel.size 2 splits: "
      "use \"AdamW\", \"Adam\", \"Lion\", \"SGD\", \"Adagrad\" or \"RMSprop\", or set "
      "tensor_parallel.size to "
      "1");
  CHECK(rule_of(2, {"optimizer={\"type\": \"Lamb\"}", "tensor_parallel.size=2"}) ==
        "--set: optimizer.type: \"Lamb\" needs whole tensors' norms, which tensor_parallel.size 2 "
        "splits: use \"AdamW\", \"Adam\", \"Lion\", \"SGD\", \"Adagrad\" or \"RMSprop\", or set "
        "tensor_parallel.size to 1");
  for (const char* type : {"AdamW", "Adam", "Lion", "SGD", "Adagrad", "RMSprop"}) {
    CHECK(rule_of(2, {fmt::format("optimizer={{\"type\": \"{}\"}}", type),
                      "tensor_parallel.size=2"}) == "");
  }
  CHECK(rule_of(2, {"optimizer={\"type\": \"Muon\"}", kTwoStages}) == "");
}

TEST_CASE("sequence parallelism divides a micro-batch's tokens", "[spec][parallel]") {
  const std::string size = "tensor_parallel={\"size\": 6, \"sequence_parallel\": true}";
  CHECK(rule_of(6, {size}) ==
        "--set: tensor_parallel.sequence_parallel: a micro-batch's tokens, "
        "train_micro_batch_size_per_gpu 2 × data.sequence_length 128, do not divide among "
        "tensor_parallel.size 6: set the one to 3, or the other to a multiple of 3, or write "
        "false");
  CHECK(rule_of(6, {size, "train_micro_batch_size_per_gpu=4"}) ==
        "--set: tensor_parallel.sequence_parallel: a micro-batch's tokens, "
        "train_micro_batch_size_per_gpu 4 × data.sequence_length 128, do not divide among "
        "tensor_parallel.size 6: set the one to 3 or 6, or the other to a multiple of 3, or write "
        "false");
  CHECK(rule_of(6, {size, "train_micro_batch_size_per_gpu=3"}) == "");
  CHECK(rule_of(6, {size, "data.sequence_length=96"}) == "");
  CHECK(rule_of(6, {"tensor_parallel.size=6"}) == "");
}

TEST_CASE("sequence parallelism without a group is reported and off", "[spec][parallel]") {
  const LoadedConfig loaded = resolved(2, {"tensor_parallel.sequence_parallel=true"});
  CHECK(loaded.notices == std::vector<std::string>{
                              "no effect: tensor_parallel.sequence_parallel: tensor_parallel.size "
                              "is 1, so there is no rank to share with"});
  CHECK_FALSE(loaded.config.tensor_parallel.sequence_parallel);
  CHECK(origin_of(loaded, "tensor_parallel.sequence_parallel") ==
        "derived: tensor_parallel.size is 1");
}

TEST_CASE("every model chunk holds at least one block", "[spec][parallel]") {
  CHECK(rule_of(8, {"pipeline.stages=8"}) ==
        "--set: pipeline.stages: 8 is more than model.num_hidden_layers 6, and each holds at least "
        "one block: set pipeline.stages to at most 6");
  CHECK(rule_of(2, {kInterleaved, "pipeline.virtual_stages=4"}) ==
        "--set: pipeline.stages: 2 × pipeline.virtual_stages 4 = 8 is more than "
        "model.num_hidden_layers 6, and each holds at least one block: set "
        "pipeline.virtual_stages to at most 3");
  CHECK(rule_of(4, {kInterleaved, "pipeline.stages=4"}) ==
        "--set: pipeline.stages: 4 × pipeline.virtual_stages 2 = 8 is more than "
        "model.num_hidden_layers 6, and each holds at least one block: set pipeline.stages to at "
        "most 3");
  CHECK_THAT(
      rule_of(3, {kInterleaved, "pipeline.stages=3", "pipeline.virtual_stages=3"}),
      Catch::EndsWith(": set pipeline.stages to at most 2, or set pipeline.virtual_stages to "
                      "at most 2"));
  CHECK_THAT(rule_of(4, {kInterleaved, "pipeline.stages=4", "pipeline.virtual_stages=4"}),
             Catch::EndsWith(": leave pipeline.schedule and pipeline.virtual_stages out, and set "
                             "pipeline.stages to at most 6"));
  CHECK(rule_of(4, {kGpt2, "pipeline.stages=4"}) ==
        "--set: pipeline.stages: 4 is more than model.n_layer 2, and each holds at least one "
        "block: set pipeline.stages to at most 2");
  CHECK(rule_of(6, {"pipeline.stages=6"}) == "");
}

TEST_CASE("a partition has an entry for each chunk and all blocks", "[spec][parallel]") {
  const auto partition = [](const std::string& list) { return "pipeline.partition=" + list; };
  CHECK(rule_of(2, {kTwoStages, partition("[2,2,2]")}) ==
        "--set: pipeline.partition: has 3 entries, and needs pipeline.stages 2: write for example "
        "[3, 3], or leave it out to balance by cost");
  CHECK(rule_of(2, {kInterleaved, partition("[3,3]")}) ==
        "--set: pipeline.partition: has 2 entries, and needs pipeline.stages 2 × "
        "pipeline.virtual_stages 2 = 4: write for example [2, 2, 1, 1], or leave it out to balance "
        "by cost");
  CHECK(rule_of(2, {kTwoStages, partition("[4,3]")}) ==
        "--set: pipeline.partition: [4, 3] sums to 7, and model.num_hidden_layers is 6: write for "
        "example [3, 3], or leave it out to balance by cost");
  CHECK(resolved(2, {kTwoStages, partition("[5,1]")}).config.pipeline.partition ==
        std::vector<std::int64_t>{5, 1});
  CHECK(rule_of(2, {partition("[6]")}) == "");
}

TEST_CASE("virtual stages and the interleaved schedule need each other", "[spec][parallel]") {
  CHECK(
      rule_of(2, {"pipeline.virtual_stages=2"}) ==
      "--set: pipeline.virtual_stages: 2 model chunks a stage need pipeline.stages of at least 2, "
      "found 1: set that, or leave pipeline.virtual_stages out");
  CHECK(
      rule_of(2, {kTwoStages, "pipeline.virtual_stages=2"}) ==
      "--set: pipeline.virtual_stages: 2 needs pipeline.schedule \"interleaved\", found \"1f1b\": "
      "write that, or leave pipeline.virtual_stages out");
  CHECK(rule_of(2, {kInterleaved, "pipeline.schedule=gpipe"}) ==
        "--set: pipeline.virtual_stages: 2 needs pipeline.schedule \"interleaved\", found "
        "\"gpipe\": write that, or leave pipeline.virtual_stages out");
  for (const char* stages : {"pipeline.stages=2", "pipeline.stages=1"}) {
    CHECK(rule_of(2, {stages, "pipeline.schedule=interleaved"}) ==
          "--set: pipeline.schedule: \"interleaved\" needs pipeline.virtual_stages of at least 2, "
          "found 1: set that, or write \"1f1b\" or \"gpipe\"");
  }
}

TEST_CASE("the interleaved schedule takes whole rounds of micro-batches", "[spec][parallel]") {
  CHECK(rule_of(2, {kInterleaved}) == "");
  CHECK(
      rule_of(2, {kInterleaved, "gradient_accumulation_steps=5"}) ==
      "--set: pipeline.schedule: \"interleaved\" takes micro-batches in rounds of pipeline.stages "
      "2, and gradient_accumulation_steps is 5: set that to 4 or 6, or write \"1f1b\" and leave "
      "pipeline.virtual_stages out");
  CHECK(rule_of(2, {kTwoStages, "gradient_accumulation_steps=5"}) == "");
}

TEST_CASE("what a pipeline costs is reported", "[spec][parallel]") {
  CHECK(notices_of(3, {"pipeline.stages=3", "gradient_accumulation_steps=2"}) ==
        std::vector<std::string>{"pipeline.stages: 3 with only 2 micro-batches a step "
                                 "(gradient_accumulation_steps): a stage is idle for 50 % of it, "
                                 "(p-1)/(m+p-1)"});
  CHECK(notices_of(4, {"pipeline.stages=4", "gradient_accumulation_steps=1"}) ==
        std::vector<std::string>{"pipeline.stages: 4 with only 1 micro-batch a step "
                                 "(gradient_accumulation_steps): a stage is idle for 75 % of it, "
                                 "(p-1)/(m+p-1)"});
  CHECK(notices_of(4, {"pipeline.stages=4", "zero_optimization.stage=1"}).empty());
  for (const int stage : {2, 3}) {
    const std::string zero = fmt::format("zero_optimization.stage={}", stage);
    CHECK(notices_of(4, {kTwoStages, zero}) ==
          std::vector<std::string>{fmt::format(
              "zero_optimization.stage: {} with pipeline.stages 2, which DeepSpeed refuses: "
              "gradients are reduce-scattered after every micro-batch (gradient_accumulation_steps "
              "4), whereas stage 1 does it once a step",
              stage)});
    CHECK(notices_of(4, {zero, "tensor_parallel.size=2"}).empty());
  }
  CHECK(notices_of(2, {"pipeline.schedule=gpipe"}) ==
        std::vector<std::string>{"no effect: pipeline.schedule: there is one pipeline stage"});
  CHECK(notices_of(2, {"pipeline.schedule=1f1b"}).empty());
}

TEST_CASE("a resolved parallel config runs again as it is", "[spec][parallel]") {
  const std::vector<std::vector<std::string>> variants = {
      {"tensor_parallel={\"autotp_size\": 2, \"sequence_parallel\": true}"},
      {"tensor_parallel.sequence_parallel=true"},
      {kTwoStages, "pipeline.partition=[5,1]", "tensor_parallel.size=2"},
      {kTwoStages, "pipeline.schedule=gpipe"},
      {kInterleaved, "pipeline.partition=[1,2,2,1]", "tensor_parallel.tp.tp_size=2"},
  };
  for (const auto& sets : variants) {
    INFO(::Catch::Detail::stringify(sets));
    const LoadedConfig loaded = resolved(4, sets);
    LoadedConfig again = load_text(to_json(loaded));
    resolve_config(again, 4);
    CHECK(again.config == loaded.config);
    CHECK(again.notices.empty());
  }
  const LoadedConfig loaded = resolved(2, {kTwoStages, "pipeline.partition=[5,1]"});
  CHECK(value_of_path(loaded, "pipeline.partition") == "[5, 1]");
  CHECK(origin_of(loaded, "pipeline.partition") == "--set");
  CHECK(value_of_path(loaded, "pipeline.schedule") == "\"1f1b\"");
}

TEST_CASE("the vertical order needs the whole model on a rank, and several micro-batches",
          "[spec][parallel]") {
  const std::string vertical = "training.block_order=vertical";
  CHECK(rule_of(8, {vertical, kTwoStages}) ==
        "--set: training.block_order: \"vertical\", with pipeline.stages 2: it takes all "
        "micro-batches through a block before the next, so that the next stage would wait for the "
        "whole step: expected \"horizontal\", or one stage");
  CHECK(resolved(1, {vertical, "gradient_accumulation_steps=4"}).config.training.block_order ==
        BlockOrder::kVertical);
  CHECK_THAT(
      notices_of(1, {vertical, "gradient_accumulation_steps=1"}),
      Catch::Matchers::VectorContains(std::string("no effect: training.block_order: a step has one "
                                                  "micro-batch (gradient_accumulation_steps)")));
}

TEST_CASE("gradients are compressed where every rank has whole ones in fp32",
          "[spec][compression]") {
  const std::string top_k = "gradient_compression.kind=top_k";
  const std::string power = "gradient_compression.kind=powersgd";
  const auto stage = [](int number) { return fmt::format("zero_optimization.stage={}", number); };
  CHECK(error_of(2, {top_k, stage(1)}).empty());
  CHECK(error_of(2, {power, stage(3)}) ==
        "--set: zero_optimization.stage: gradient_compression \"powersgd\" needs the whole "
        "gradient of each matrix on every rank, and 3 cuts it: write 1, or "
        "gradient_compression.kind \"none\"");
  CHECK(error_of(2, {top_k, R"(optimizer={"type": "OneBitAdam"})"}) ==
        "--set: gradient_compression.kind: \"top_k\" compresses gradients, and a 1-bit optimizer "
        "exchanges signs in their place: write \"none\", or take another optimizer.type");
  CHECK(error_of(2, {top_k, "bf16.enabled=true", "data_types.grad_accum_dtype=bf16"}) ==
        "--set: data_types.grad_accum_dtype: gradient_compression \"top_k\" adds what it could not "
        "send to gradients in fp32: write \"fp32\", or leave it out");
  CHECK(error_of(2, {power, "bf16.enabled=true", "bf16.bf16_master_weights_and_grads=true"}) ==
        "--set: bf16.bf16_master_weights_and_grads: gradient_compression \"powersgd\" needs "
        "gradients in fp32: leave it out, or write gradient_compression.kind \"none\"");
  CHECK_THAT(error_of(2, {power, "gradient_compression.density=0.1"}),
             Catch::Matchers::Contains("kind \"top_k\""));
  CHECK_THAT(notices_of(1, {power, "gradient_compression.start_step=3"}),
             Catch::Matchers::VectorContains(
                 std::string("no effect: gradient_compression.kind: one data-parallel rank has "
                             "nobody to send gradients to")));
  CHECK_THAT(notices_of(2, {power}),
             Catch::Matchers::VectorContains(std::string(
                 "gradient_compression.start_step: 1000 updates with exact sums are not fewer than "
                 "the 10 steps of the run: nothing will be compressed")));
}

TEST_CASE("inputs of blocks are kept in parts where ranks share them, and else it is said why not",
          "[spec][parallel][recompute]") {
  const std::string partition = "activation_checkpointing.partition_activations=true";
  const std::string full = "activation_checkpointing.granularity=full";
  const std::string tensor = "tensor_parallel.size=2";
  const LoadedConfig on = resolved(2, {partition, full, tensor});
  CHECK(on.config.recompute.partitions_inputs);
  CHECK(on.notices.empty());
  const auto says = [&](const std::vector<std::string>& overrides, const std::string& reason) {
    const LoadedConfig off = resolved(2, overrides);
    CHECK_FALSE(off.config.recompute.partitions_inputs);
    CHECK(off.notices ==
          std::vector<std::string>{"no effect: activation_checkpointing.partition_activations: " +
                                   reason});
    CHECK(origin_of(off, "activation_checkpointing.partition_activations") == "derived: " + reason);
  };
  says({partition, tensor},
       "activation_checkpointing.granularity is \"none\": no block recomputes");
  says({partition, full}, "tensor_parallel.size is 1, so there is no rank to share with");
  says({partition, full, tensor, "tensor_parallel.sequence_parallel=true"},
       "tensor_parallel.sequence_parallel cuts what a block keeps already");
  CHECK(resolved(2, {partition, full, tensor, "training.block_order=vertical"})
            .config.recompute.partitions_inputs);
}

TEST_CASE("inputs of blocks lie in the host's memory where that is not the device's",
          "[spec][parallel][recompute]") {
  const std::string key = "activation_checkpointing.cpu_checkpointing";
  const std::string full = "activation_checkpointing.granularity=full";
  const std::string cuda = "training.device=cuda";
  CHECK(resolved(1, {key + "=true", full, cuda}).config.recompute.inputs_on_host);
  const LoadedConfig off = resolved(1, {key + "=true", full});
  CHECK_FALSE(off.config.recompute.inputs_on_host);
  CHECK(off.notices ==
        std::vector<std::string>{"no effect: " + key +
                                 ": the device is the host (training.device is not \"cuda\")"});
  CHECK_THAT(notices_of(1, {key + "=true", cuda}),
             Catch::Matchers::VectorContains(
                 "no effect: " + key +
                 ": activation_checkpointing.granularity is \"none\": no block recomputes"));
  CHECK(resolved(1, {key + "=true", full, cuda, "training.block_order=vertical"})
            .config.recompute.inputs_on_host);
  CHECK(rule_of(1, {key + "=true", full, cuda, "training.cuda_graphs=true"}) ==
        "--set: " + key +
            ": true, with training.cuda_graphs, and a graph cannot hold copies that go on beside "
            "its block: expected one of the two");
}

TEST_CASE("graphs hold no talk between ranks, and a CPU has none", "[spec][parallel]") {
  const std::string graphs = "training.cuda_graphs=true";
  const std::string cuda = "training.device=cuda";
  CHECK(rule_of(8, {graphs, cuda, "tensor_parallel.size=2"}) ==
        "--set: training.cuda_graphs: true, with tensor_parallel.size 2, whose ranks communicate "
        "within a "
        "block, and a graph cannot hold communication: expected false, or one rank for a block");
  const auto tells = [](const std::vector<std::string>& notices) {
    return std::count(notices.begin(), notices.end(),
                      "no effect: training.cuda_graphs: a CPU has none (training.device is not "
                      "\"cuda\")");
  };
  CHECK(tells(notices_of(8, {graphs})) == 1);
  CHECK(tells(notices_of(8, {graphs, cuda, kTwoStages})) == 0);
  CHECK(resolved(8, {graphs, cuda}).config.training.cuda_graphs);
}

}  // namespace dstrain
