// "pipeline" and "tensor_parallel" as they are read: fields, DeepSpeed's second names, refusals.
#include <algorithm>

#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

int size_of_tiny(const std::string& set) {
  return load_tiny({set}).config.tensor_parallel.size;
}

}  // namespace

TEST_CASE("a run that says nothing has one stage and whole layers", "[spec][parallel]") {
  const LoadedConfig loaded = load_tiny({});
  CHECK(loaded.config.tensor_parallel ==
        TensorParallelConfig{.size = 1, .sequence_parallel = false});
  CHECK(loaded.config.pipeline ==
        PipelineConfig{
            .stages = 1, .schedule = ScheduleKind::k1F1B, .virtual_stages = 1, .partition = {}});
  CHECK(origin_of(loaded, "pipeline.schedule") == "default");
  CHECK(value_of_path(loaded, "pipeline.partition").empty());  // balanced: there is none to print
}

TEST_CASE("the degrees, the schedule and the partition arrive", "[spec][parallel]") {
  const Config c = load_tiny({R"(pipeline={"stages": 4, "schedule": "interleaved",
                                  "virtual_stages": 2, "partition": [1, 2, 3, 4, 5, 6, 7, 8]})",
                              R"(tensor_parallel={"size": 2, "sequence_parallel": true})"})
                       .config;
  CHECK(c.pipeline == PipelineConfig{.stages = 4,
                                     .schedule = ScheduleKind::kInterleaved,
                                     .virtual_stages = 2,
                                     .partition = {1, 2, 3, 4, 5, 6, 7, 8}});
  CHECK(c.tensor_parallel == TensorParallelConfig{.size = 2, .sequence_parallel = true});
  CHECK(load_tiny({"pipeline.schedule=gpipe"}).config.pipeline.schedule == ScheduleKind::kGpipe);
  CHECK(load_tiny({"pipeline.schedule=1f1b"}).config.pipeline.schedule == ScheduleKind::k1F1B);
}

TEST_CASE("\"auto\" and null leave the pipeline as it is", "[spec][parallel]") {
  for (const char* nothing : {"auto", "null"}) {
    const LoadedConfig loaded = load_tiny(
        {std::string("pipeline.stages=") + nothing, std::string("pipeline.partition=") + nothing});
    CHECK(loaded.config == load_tiny({}).config);
    CHECK(loaded.notices.empty());
  }
  CHECK(load_tiny({"pipeline.partition=best"}).config.pipeline.partition.empty());
}

TEST_CASE("DeepSpeed's names of the tensor-parallel size mean the same", "[spec][parallel]") {
  CHECK(size_of_tiny("tensor_parallel.size=4") == 4);
  CHECK(size_of_tiny("tensor_parallel.autotp_size=4") == 4);
  CHECK(size_of_tiny("tensor_parallel.tp.tp_size=4") == 4);
  CHECK(size_of_tiny("tensor_parallel.autotp_size=0") == 1);
  CHECK(size_of_tiny(R"(tensor_parallel={"autotp_size": 0, "tp": {"tp_size": 2}})") == 2);
  CHECK_THAT(error_of_tiny({R"(tensor_parallel={"size": 2, "autotp_size": 4})"}),
             Contains("tensor_parallel.autotp_size: given twice; tensor_parallel.size at"));
  for (const char* set : {"tensor_parallel.size=0", "tensor_parallel.tp.tp_size=0",
                          "tensor_parallel.autotp_size=-1"}) {
    INFO(set);
    CHECK_THAT(error_of_tiny({set}),
               Contains("tensor_parallel.size: must be an integer in [1, 1000000], found "));
  }
}

TEST_CASE("a partition is a list of positive integers", "[spec][parallel]") {
  for (const char* method : {"parameters", "uniform", "type:transformer"}) {
    INFO(method);
    const std::string set = std::string("pipeline.partition=") + method;
    CHECK(
        error_of_tiny({set}) ==
        fmt::format("--set {}: pipeline.partition: \"{}\" is refused: DeepSpeed's methods are not "
                    "in dstrain, which balances the stages by cost: leave it out, or write the "
                    "blocks of each stage, such as [3, 3]",
                    set, method));
  }
  for (const char* wrong : {"[]", "[1, 0]", "[2, -1]", "[1.5]", "[\"1\"]", "2", "true", "{}"}) {
    const std::string set = std::string("pipeline.partition=") + wrong;
    CHECK(error_of_tiny({set}) ==
          fmt::format("--set {}: pipeline.partition: must be a list of positive integers, the "
                      "blocks of each stage, such as [3, 3]; found {}",
                      set, wrong));
  }
}

TEST_CASE("other values of the parallel blocks are refused with what is expected",
          "[spec][parallel]") {
  CHECK_THAT(error_of_tiny({"pipeline.stages=0"}), Contains("an integer in [1, 1000000], found 0"));
  CHECK_THAT(error_of_tiny({"pipeline.virtual_stages=0"}), Contains("an integer in [1, 1000000]"));
  CHECK_THAT(error_of_tiny({"pipeline.schedule=1F1B"}),
             Contains("must be \"1f1b\", \"gpipe\" or \"interleaved\", found the string \"1F1B\"; "
                      "did you mean \"1f1b\"?"));
  CHECK_THAT(error_of_tiny({"tensor_parallel.sequence_parallel=2"}),
             Contains("must be true or false, found 2"));
  for (const char* sizes : {"[2]", "[2, 2, 2]", "[0, 4]", "4", "[1000000, 1000000]"}) {
    CHECK_THAT(error_of_tiny({std::string("hierarchical_context_parallel_sizes=") + sizes}),
               Contains("hierarchical_context_parallel_sizes: must be a list of two positive "
                        "integers, of the ranks that exchange heads and of those that exchange "
                        "keys, such as [2, 4]; found"));
  }
  CHECK_THAT(error_of_tiny({"context_parallel.kind=rings"}),
             Contains("must be \"ring\", \"ulysses\" or \"usp\", found the string \"rings\"; did "
                      "you mean \"ring\"?"));
}

TEST_CASE("context parallelism is asked for in three programs' words", "[spec][parallel]") {
  const auto resolved = [](std::vector<std::string> sets, int ranks) {
    LoadedConfig loaded = load_tiny(sets);
    resolve_config(loaded, ranks);
    return loaded.config.context_parallel;
  };
  const ContextParallelConfig ring = resolved({"context_parallel.size=4"}, 4);
  CHECK(ring.kind == ContextKind::kRing);
  CHECK(ring.heads() == 1);
  CHECK(ring.unit() == 8);
  CHECK(resolved({"context_parallel_size=4", "cp_comm_type=p2p"}, 4) == ring);
  const ContextParallelConfig ulysses = resolved({"sequence_parallel_size=4"}, 4);
  CHECK(ulysses.kind == ContextKind::kUlysses);
  CHECK(ulysses.heads() == 4);
  CHECK(ulysses.unit() == 4);
  CHECK(resolved({"context_parallel.size=4", "context_parallel.cp_comm_type=a2a"}, 4) == ulysses);
  const ContextParallelConfig usp =
      resolved({"context_parallel.size=4", "cp_comm_type=a2a+p2p"}, 4);
  CHECK(usp.heads() == 4);  // one host's ranks deal all heads
  const ContextParallelConfig of_both = resolved({"hierarchical_context_parallel_sizes=[2, 4]"}, 8);
  CHECK(of_both.kind == ContextKind::kUsp);
  CHECK(of_both.size == 8);
  CHECK(of_both.heads() == 2);
  CHECK(resolved({"context_parallel.size=8", "cp_comm_type=a2a+p2p",
                  "context_parallel.hierarchical_context_parallel_sizes=[2, 4]"},
                 8) == of_both);
  CHECK(resolved({"context_parallel.size=8", "context_parallel.kind=usp",
                  "context_parallel.ulysses_size=2"},
                 8) == of_both);
  CHECK(resolved({"hierarchical_context_parallel_sizes=[1, 1]"}, 1) == ContextParallelConfig{});
  MachineFacts hosts_of_two{.ranks_per_host = 2};
  LoadedConfig loaded = load_tiny({"context_parallel.size=4", "context_parallel.kind=usp"});
  resolve_config(loaded, 4, hosts_of_two);
  CHECK(loaded.config.context_parallel.heads() == 2);
}

TEST_CASE("a way of sharing sequences without ranks that do has no effect, and says so",
          "[spec][parallel]") {
  LoadedConfig one = load_tiny({"context_parallel.kind=ulysses"});
  resolve_config(one, 1);
  CHECK_FALSE(one.config.context_parallel.kind);
  CHECK_THAT(fmt::format("{}", fmt::join(one.notices, "\n")),
             Contains("no effect: context_parallel.kind: context_parallel.size is 1"));
  LoadedConfig off = load_tiny({"sequence_parallel_size=1"});  // as other programs write it
  resolve_config(off, 1);
  CHECK(off.config.context_parallel == ContextParallelConfig{});
  CHECK_THAT(fmt::format("{}", fmt::join(off.notices, "\n")), !Contains("parallel"));
}

TEST_CASE("what sequences and heads do not allow is said with what they do", "[spec][parallel]") {
  const auto error = [](std::vector<std::string> sets, int ranks) {
    LoadedConfig loaded = load_tiny(sets);
    try {
      resolve_config(loaded, ranks);
    } catch (const ConfigError& refused) {
      return std::string(refused.what());
    }
    return std::string();
  };
  CHECK_THAT(
      error({"context_parallel.size=3", "data.sequence_length=64"}, 3),
      Contains("data.sequence_length: 64 tokens do not divide among context_parallel.size 3, "
               "two chunks each in zigzag order: the nearest lengths that do are 60 or 66"));
  CHECK_THAT(
      error({"context_parallel.size=8", "context_parallel.kind=ulysses", "data.sequence_length=64"},
            8),
      Contains("8 ranks cannot deal the 4 query heads and 2 key/value heads among them") &&
          Contains("write 4, or context_parallel.kind \"usp\" with "
                   "context_parallel.ulysses_size 4, or \"ring\""));
  CHECK_THAT(error({"context_parallel.size=2", "sequence_parallel_size=4"}, 4),
             Contains("4, which is context_parallel with size 4 and kind \"ulysses\", contradicts "
                      "that block: leave it out"));
  for (const char* contradiction :
       {"context_parallel.size=4", "context_parallel.kind=ring", "context_parallel.ulysses_size=4",
        "sequence_parallel_size=8"}) {
    CHECK_THAT(error({"hierarchical_context_parallel_sizes=[2, 4]", contradiction}, 8),
               Contains("[2, 4], which is context_parallel with size 8, kind \"usp\" and "
                        "ulysses_size 2, contradicts that block: leave it out"));
  }
  CHECK_THAT(error({"context_parallel.size=2"}, 3),
             Contains("context_parallel.size: 2 does not divide the 3 ranks: run 2 or 4"));
  CHECK_THAT(
      error({"context_parallel.size=2", "zero_optimization.stage=3",
             "zero_optimization.mics_shard_size=1", "train_batch_size=8"},
            8),
      Contains("1 does not divide the 8 data-parallel ranks, of which context_parallel.size 2 "
               "share each sequence: write 2"));
}

TEST_CASE("ranks that hold other experts divide the experts and the ranks", "[spec][parallel]") {
  const auto resolved = [](std::vector<std::string> sets, int ranks) {
    for (const char* const set : {"model.model_type=mixtral", "model.num_local_experts=6"}) {
      sets.emplace_back(set);
    }
    LoadedConfig loaded = load_tiny(sets);
    resolve_config(loaded, ranks);
    return loaded.config.expert_parallel.size;
  };
  const auto error = [&](const std::vector<std::string>& sets, int ranks) {
    try {
      resolved(sets, ranks);
    } catch (const ConfigError& refused) {
      return std::string(refused.what());
    }
    return std::string();
  };
  CHECK(resolved({"expert_parallel.size=2"}, 4) == 2);
  CHECK(resolved({"expert_model_parallel_size=2"}, 4) == 2);
  CHECK_THAT(error({"expert_parallel.size=4"}, 4),
             Contains("4 does not divide the 6 experts of a layer: expected 3"));
  CHECK_THAT(error({"expert_parallel.size=3"}, 4),
             Contains("3 does not divide the 4 ranks that have other tokens: expected 2"));
  CHECK_THAT(error({"expert_parallel.size=2", "optimizer.type=OneBitAdam"}, 2),
             Contains("2, and optimizer.type sends signs"));
  CHECK_THAT(error({"fp8.enabled=true", "bf16.enabled=true"}, 1),
             Contains("products are not in 8 bits in this version"));
  CHECK(resolved({"expert_parallel.size=2", "context_parallel.size=2"}, 2) == 2);
  const auto with_tensor = [](std::vector<std::string> sets) {
    sets.emplace_back("tensor_parallel.size=2");
    sets.emplace_back("model.num_key_value_heads=2");
    return sets;
  };
  const std::string own_tokens = "tensor_parallel.sequence_parallel=true";
  const std::string whole = "expert_parallel.tensor_size=1";
  CHECK(resolved(with_tensor({"expert_parallel.size=2"}), 4) == 2);
  CHECK_THAT(error(with_tensor({"expert_parallel.size=2"}), 2),
             Contains("2 does not divide the 1 ranks that have other tokens: expected 1"));
  CHECK(resolved(with_tensor({"expert_parallel.size=2", own_tokens, whole}), 2) == 2);
  CHECK(resolved(with_tensor({own_tokens, "expert_tensor_parallel_size=1"}), 2) == 1);
  CHECK(resolved(with_tensor({"expert_parallel.tensor_size=2"}), 2) == 1);
  CHECK_THAT(error(with_tensor({whole}), 2),
             Contains("it has some with tensor_parallel.sequence_parallel: expected that, or 2"));
  CHECK_THAT(error(with_tensor({"expert_parallel.tensor_size=4"}), 4),
             Contains("4, with tensor_parallel.size 2: in this version expected 1, for whole "
                      "experts, or 2"));
  CHECK_THAT(error({"expert_parallel.tensor_size=2"}, 2),
             Contains("2, with tensor_parallel.size 1: expected 1"));
  CHECK_THAT(error(with_tensor({own_tokens, whole, "training.expert_capacity_factor=1"}), 2),
             Contains("experts drop tokens of whole sequences alone"));
  CHECK_THAT(error(with_tensor({own_tokens, whole, "zero_optimization.stage=3",
                                "zero_optimization.mics_shard_size=2"}),
                   4),
             Contains("zero_optimization.mics_shard_size is set: whole experts beside layers in "
                      "parts"));
  LoadedConfig dense = load_tiny({"expert_parallel.size=2"});
  CHECK_THROWS_WITH(resolve_config(dense, 2), Contains("2, and the model has no experts"));
  LoadedConfig dense_too = load_tiny({"expert_parallel.tensor_size=1"});
  CHECK_THROWS_WITH(resolve_config(dense_too, 2), Contains("1, and the model has no experts"));
}

TEST_CASE("experts take all tokens, or so many times an even share", "[spec][parallel]") {
  const std::vector<std::string> mixture{"model.model_type=mixtral", "model.num_local_experts=6"};
  const auto resolved = [&](const std::string& set) {
    std::vector<std::string> sets = mixture;
    sets.push_back(set);
    LoadedConfig loaded = load_tiny(sets);
    resolve_config(loaded, 1);
    return loaded;
  };
  CHECK_FALSE(resolved("training.seed=1").config.training.expert_capacity_factor);
  CHECK(resolved("training.expert_capacity_factor=1.25").config.training.expert_capacity_factor ==
        1.25);
  CHECK(resolved("moe_expert_capacity_factor=1.5").config.training.expert_capacity_factor == 1.5);
  CHECK_THROWS_WITH(resolved("training.expert_capacity_factor=0"), Contains("greater than 0"));
  const std::string no_effect = "no effect: training.expert_capacity_factor";
  const auto says_no_effect = [&](const char* factor) {
    const std::vector<std::string> notices =
        resolved(std::string("training.expert_capacity_factor=") + factor).notices;
    return std::any_of(notices.begin(), notices.end(),
                       [&](const std::string& notice) { return notice.starts_with(no_effect); });
  };
  CHECK(says_no_effect("3"));
  CHECK_FALSE(says_no_effect("2.9"));
  CHECK_THROWS_WITH(
      [&] {
        LoadedConfig shared = load_tiny({mixture[0], mixture[1], "context_parallel.size=2",
                                         "training.expert_capacity_factor=1"});
        resolve_config(shared, 2);
      }(),
      Contains("experts drop tokens of whole sequences alone"));
  CHECK(resolved("training.mlp_tile_tokens=8").config.training.mlp_tile_tokens == 8);
  CHECK_THROWS_WITH(
      [&] {
        LoadedConfig in_tiles = load_tiny({mixture[0], mixture[1], "training.mlp_tile_tokens=8",
                                           "training.expert_capacity_factor=1"});
        resolve_config(in_tiles, 1);
      }(),
      Contains("1, with training.mlp_tile_tokens 8"));
  LoadedConfig dense = load_tiny({"training.expert_capacity_factor=1"});
  CHECK_THROWS_WITH(resolve_config(dense, 1), Contains("1, and the model has no experts"));
}

TEST_CASE("names that other trainers use point at the keys", "[spec][parallel]") {
  CHECK_THAT(error_of_tiny({"tensor_model_parallel_size=2"}),
             Contains("the key for it is \"tensor_parallel.size\""));
  CHECK_THAT(error_of_tiny({"pipeline_model_parallel_size=2"}),
             Contains("the key for it is \"pipeline.stages\""));
}

TEST_CASE("DeepSpeed's other keys of the parallel blocks say why they do nothing",
          "[spec][parallel]") {
  const LoadedConfig loaded = load_tiny(
      {R"(pipeline={"stages": 2, "seed_layers": true, "activation_checkpoint_interval": 1,
           "pipe_partitioned": true, "grad_partitioned": true})",
       R"(tensor_parallel={"size": 2, "tp": {"tp_grain_size": 64}, "tp_overlap_comm": true,
           "preset_model": "llama", "partition_config": {}, "dtype": "bf16",
           "keep_module_on_host": true})"});
  CHECK(
      loaded.notices ==
      std::vector<std::string>{
          "no effect: tensor_parallel.dtype: \"bf16\" and \"fp16\" decide it",
          "no effect: pipeline.seed_layers: a parameter's initial values follow from the seed and "
          "its name, on any number of stages",
          "no effect: tensor_parallel.tp.tp_grain_size: a rank holds whole attention heads and an "
          "equal share of the MLP",
          "no effect: tensor_parallel.keep_module_on_host: a rank makes its own part of the "
          "parameters, where it computes",
          "no effect: pipeline.activation_checkpoint_interval: activation_checkpointing decides "
          "what is recomputed",
          "no effect: tensor_parallel.tp_overlap_comm: dstrain decides what is computed beside a "
          "collective",
          "no effect: tensor_parallel.preset_model, tensor_parallel.partition_config: "
          "model.model_type decides how each layer is split",
          "no effect: pipeline.pipe_partitioned, pipeline.grad_partitioned: "
          "tensor_parallel.sequence_parallel decides whether what stages exchange is split"});
  CHECK(load_tiny({"pipeline.activation_checkpoint_interval=0"}).notices.empty());
}

}  // namespace dstrain
