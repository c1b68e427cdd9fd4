// What "zero_optimization" may contain: the stages and their tuning, keys without effect on units,
// and keys that would put memory elsewhere.
#include <algorithm>

#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

std::vector<std::string> zero(const std::string& block) {
  return {"zero_optimization=" + block};
}

}  // namespace

TEST_CASE("ZeRO's stages are 0 to 3", "[spec][zero]") {
  for (const int stage : {0, 1, 2, 3}) {
    const LoadedConfig loaded = load_tiny({fmt::format("zero_optimization.stage={}", stage)});
    CHECK(loaded.config.zero.stage == stage);
    CHECK(loaded.notices.empty());
  }
  CHECK_THAT(error_of_tiny({"zero_optimization.stage=4"}),
             Contains("must be an integer in [0, 3], found 4"));
  CHECK(load_tiny({"zero_optimization=true"}).config.zero.stage == 1);
  CHECK_THAT(error_of_tiny({"zero_optimization=2"}),
             Contains("must be true or false, found 2 (write {\"stage\": 1}, or 0, 2 or 3)"));
  CHECK(load_tiny({"zero_optimization=false"}).config.zero == ZeroConfig{});
}

TEST_CASE("stage 3 is tuned by its five sizes, with or without their prefix", "[spec][zero]") {
  const ZeroConfig tuned{.stage = 3,
                         .overlap_comm = false,
                         .prefetch_bucket_size = 50'000'000,
                         .param_persistence_threshold = 1,
                         .model_persistence_threshold = 2,
                         .max_live_parameters = 3,
                         .max_reuse_distance = 4};
  for (const std::string prefix : {"stage3_", ""}) {
    CHECK(load_tiny(zero(R"({"stage": 3, "overlap_comm": false, ")" + prefix +
                         R"(prefetch_bucket_size": 5e7, ")" + prefix +
                         R"(param_persistence_threshold": 1, ")" + prefix +
                         R"(model_persistence_threshold": 2, ")" + prefix +
                         R"(max_live_parameters": 3, ")" + prefix + R"(max_reuse_distance": 4})"))
              .config.zero == tuned);
  }
  const LoadedConfig automatic =
      load_tiny(zero(R"({"stage": 3, "stage3_prefetch_bucket_size": "auto",
                         "stage3_param_persistence_threshold": "auto",
                         "stage3_max_live_parameters": null})"));
  // 0.9 · 64² and 10 · 64, as Hugging Face's Trainer fills them.
  CHECK(automatic.config.zero ==
        ZeroConfig{.stage = 3, .prefetch_bucket_size = 3686, .param_persistence_threshold = 640});
  CHECK(automatic.notices.empty());
  CHECK_THAT(error_of_tiny(zero(R"({"stage": 3, "stage3_max_reuse_distance": -1})")),
             Contains("of at least 0, found -1"));
  CHECK_THAT(error_of_tiny(zero(R"({"stage": 3, "max_reuse_distance": 2,
                                    "stage3_max_reuse_distance": 1})")),
             Contains("given twice"));
}

TEST_CASE("stage 3's sizes say that they have no effect in a lower stage", "[spec][zero]") {
  const LoadedConfig loaded = load_tiny(zero(
      R"({"stage": 2, "stage3_prefetch_bucket_size": 5e7, "param_persistence_threshold": 10})"));
  CHECK(loaded.config.zero == ZeroConfig{.stage = 2});
  REQUIRE(loaded.notices.size() == 1);
  CHECK(loaded.notices[0] ==
        "no effect: zero_optimization.stage3_prefetch_bucket_size, "
        "zero_optimization.stage3_param_persistence_threshold: it tunes ZeRO's stage 3, and the "
        "stage is lower");
}

TEST_CASE("every key of another grain is taken and reported to have no effect", "[spec][zero]") {
  for (const char* key :
       {"contiguous_gradients", "reduce_scatter", "reduce_bucket_size", "allgather_bucket_size",
        "allgather_partitions", "use_multi_rank_bucket_allreduce", "sub_group_size",
        "round_robin_gradients", "elastic_checkpoint", "load_from_fp32_weights",
        "ignore_unused_parameters", "leaf_module", "memory_efficient_linear",
        "stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save",
        "stage3_module_granularity_threshold", "module_granularity_threshold",
        "stage3_use_all_reduce_for_fetch_params", "stage3_allgather_sequential"}) {
    INFO(key);
    const LoadedConfig loaded =
        load_tiny({"zero_optimization.stage=2", fmt::format("zero_optimization.{}=1", key)});
    CHECK(loaded.config.zero == ZeroConfig{.stage = 2});
    REQUIRE(loaded.notices.size() == 1);
    CHECK_THAT(loaded.notices[0], Catch::StartsWith("no effect: zero_optimization."));
    CHECK(load_tiny({fmt::format("zero_optimization.{}=auto", key)}).notices.empty());
  }
  CHECK_THAT(load_tiny({"zero_optimization.elastic_checkpoint=true"}).notices.at(0),
             Contains("a checkpoint resumes on any number of ranks"));
}

TEST_CASE("what would put memory or traffic elsewhere is refused unless it is off",
          "[spec][zero]") {
  const auto refused = [](const std::string& set, const std::string& reason) {
    INFO(set);
    const std::string error =
        error_of_tiny({"zero_optimization.stage=3", "zero_optimization." + set});
    CHECK_THAT(error, Contains("refused: "));
    CHECK_THAT(error, Contains(reason));
  };
  refused("zero_quantized_nontrainable_weights=true", "all are trained: write false");
  refused("zeropp_loco_param={\"err_beta\": 0.8}", "what earlier steps lost on the way");
  refused("zenflow={\"topk_ratio\": 0.1}", "it delays a part of the gradients");
  refused("legacy_stage1=true", "DeepSpeed has removed it as well");
  const LoadedConfig off =
      load_tiny(zero(R"({"zero_hpz_partition_size": 1, "zero_quantized_weights": false,
               "zero_quantized_gradients": "auto", "zeropp_loco_param": null,
               "mics_shard_size": -1, "mics_hierarchical_params_gather": false, "zenflow": null,
               "offload_optimizer": {"device": "none", "pin_memory": true}})"));
  CHECK(off.config.zero == ZeroConfig{});
  CHECK(off.notices.empty());
}

TEST_CASE("a second copy of the parameters needs stage 3, and ranks that divide alike",
          "[spec][zero]") {
  const auto resolved = [](int ranks, std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"train_batch_size=auto", "gradient_accumulation_steps=1",
                                       "train_micro_batch_size_per_gpu=1"});
    LoadedConfig loaded = load_tiny(overrides);
    resolve_config(loaded, ranks);
    return loaded;
  };
  const std::string stage3 = "zero_optimization.stage=3";
  const std::string four = "zero_optimization.zero_hpz_partition_size=4";
  CHECK(resolved(8, {stage3, four}).config.zero.secondary_ranks == 4);
  CHECK_THAT(config_error_of([&] {
               (void)resolved(6, {stage3, four});
             }),
             Contains("4 does not divide the 6 data-parallel ranks: write 3"));
  const auto tells = [](const LoadedConfig& loaded, const char* what) {
    return std::any_of(loaded.notices.begin(), loaded.notices.end(), [&](const std::string& line) {
      return line.find(what) != std::string::npos;
    });
  };
  CHECK(tells(resolved(4, {stage3, four}), "zero_hpz_partition_size: 4 ranks would hold"));
  CHECK(tells(resolved(8, {four}), "parameters are gathered in ZeRO's stage 3"));
}

TEST_CASE(
    "groups of ranks that cut parameters among them need stage 3, and ranks that divide alike",
    "[spec][zero]") {
  const auto resolved = [](int ranks, std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"train_batch_size=auto", "gradient_accumulation_steps=1",
                                       "train_micro_batch_size_per_gpu=1"});
    LoadedConfig loaded = load_tiny(overrides);
    resolve_config(loaded, ranks);
    return loaded;
  };
  const auto error = [&](int ranks, const std::vector<std::string>& overrides) {
    return config_error_of([&] { (void)resolved(ranks, overrides); });
  };
  const std::string stage3 = "zero_optimization.stage=3";
  const std::string four = "zero_optimization.mics_shard_size=4";
  const LoadedConfig eight = resolved(8, {stage3, four});
  CHECK(eight.config.zero.shard_ranks == 4);
  CHECK(resolved(4, {stage3, four}).config.zero.shard_ranks == 4);
  CHECK_THAT(error(6, {stage3, four}),
             Contains("mics_shard_size") && Contains("4 does not divide the 6 data-parallel ranks: "
                                                     "write 3"));
  CHECK_THAT(error(2, {stage3, four}), Contains("the 2 data-parallel ranks: write 2"));
  CHECK_THAT(error(8, {stage3, four, "zero_optimization.zero_hpz_partition_size=2"}),
             Contains("mics_shard_size") && Contains("need no second copy"));
  CHECK_THAT(error_of_tiny({"zero_optimization.stage=2", four}),
             Contains("4 is refused") && Contains("the stage is lower"));
  CHECK(load_tiny({"zero_optimization.stage=2", "zero_optimization.mics_shard_size=-1"})
            .notices.empty());
  const LoadedConfig hierarchy =
      load_tiny({stage3, four, "zero_optimization.mics_hierarchical_params_gather=true"});
  REQUIRE(hierarchy.notices.size() == 1);
  CHECK_THAT(hierarchy.notices[0], Contains("a way through the hosts for the same bytes"));
}

TEST_CASE("parameters travel in 8 bits and gradients in 4 in stage 3", "[spec][zero]") {
  const std::string weights = "zero_optimization.zero_quantized_weights=true";
  const std::string gradients = "zero_optimization.zero_quantized_gradients=true";
  const std::string stage3 = "zero_optimization.stage=3";
  const LoadedConfig loaded = load_tiny({stage3, weights});
  CHECK(loaded.config.zero == ZeroConfig{.stage = 3, .quantized_weights = true});
  CHECK(loaded.notices.empty());
  const LoadedConfig both = load_tiny({stage3, weights, gradients});
  CHECK(both.config.zero ==
        ZeroConfig{.stage = 3, .quantized_weights = true, .quantized_gradients = true});
  CHECK(both.notices.empty());
  for (const std::string& coded : {weights, gradients}) {
    CHECK_THAT(error_of_tiny({"zero_optimization.stage=2", coded}),
               Contains("true is refused") && Contains("the stage is lower"));
  }
  const auto resolved = [&](std::vector<std::string> overrides) {
    overrides.insert(overrides.end(),
                     {stage3, gradients, "train_batch_size=auto", "gradient_accumulation_steps=1",
                      "train_micro_batch_size_per_gpu=1"});
    LoadedConfig config = load_tiny(overrides);
    resolve_config(config, 4);
    return config;
  };
  const auto tells = [&](const LoadedConfig& config) {
    return std::any_of(config.notices.begin(), config.notices.end(), [](const std::string& line) {
      return line.find("communication_data_type: gradients travel in 4 bits") != std::string::npos;
    });
  };
  CHECK(tells(resolved({"bf16.enabled=true", "communication_data_type=bf16"})));
  CHECK_FALSE(tells(resolved({"bf16.enabled=true", "communication_data_type=bf16",
                              "zero_optimization.mics_shard_size=2"})));
  CHECK_FALSE(tells(resolved({})));
}

TEST_CASE("gradients in 4 bits are added up within hosts first, where all have as many ranks",
          "[spec][zero]") {
  const auto resolved = [](int ranks, std::optional<int> per_host,
                           std::vector<std::string> overrides) {
    overrides.insert(overrides.end(),
                     {"zero_optimization.stage=3",
                      "zero_optimization.zero_quantized_gradients=true", "train_batch_size=auto",
                      "gradient_accumulation_steps=1", "train_micro_batch_size_per_gpu=1"});
    LoadedConfig loaded = load_tiny(overrides);
    resolve_config(loaded, ranks, {.ranks_per_host = per_host});
    return loaded;
  };
  const auto neighbours = [&](int ranks, std::optional<int> per_host,
                              const std::vector<std::string>& overrides = {}) {
    return resolved(ranks, per_host, overrides).config.zero.gradient_ranks;
  };
  CHECK(neighbours(8, 4) == 4);
  CHECK(neighbours(8, std::nullopt) == 1);
  CHECK(neighbours(8, 8) == 1);   // one host
  CHECK(neighbours(12, 8) == 1);  // of which one has fewer
  CHECK(neighbours(8, 1) == 1);
  CHECK(neighbours(8, 4, {"tensor_parallel.size=2"}) == 2);
  CHECK(neighbours(8, 2, {"tensor_parallel.size=2"}) == 1);
  CHECK(neighbours(8, 4, {"pipeline.stages=2", "gradient_accumulation_steps=2"}) == 1);
  CHECK(neighbours(8, 2, {"pipeline.stages=2", "gradient_accumulation_steps=2"}) == 2);
  const std::string two = "zero_optimization.zero_qgz_partition_size=2";
  CHECK(neighbours(8, 4, {two}) == 2);
  CHECK(neighbours(8, 4, {"zero_optimization.zero_qgz_partition_size=1"}) == 1);
  CHECK(neighbours(8, 4, {"zero_optimization.zero_qgz_partition_size=auto"}) == 4);
  CHECK(neighbours(8, 4, {"zero_optimization.zero_hpz_partition_size=2"}) == 2);
  CHECK_THAT(config_error_of([&] { (void)neighbours(9, {}, {two}); }),
             Contains("zero_qgz_partition_size") &&
                 Contains("2 does not divide the 9 data-parallel ranks: write 1"));
  CHECK_THAT(
      config_error_of([&] {
        (void)neighbours(8, {}, {two, "zero_optimization.zero_hpz_partition_size=4"});
      }),
      Contains("zero_qgz_partition_size") && Contains("the neighbours are the same: expected 4"));
  const std::string groups = "zero_optimization.mics_shard_size=4";
  CHECK(neighbours(8, 4, {groups}) == 1);
  CHECK_THAT(config_error_of([&] {
               (void)neighbours(8, 4, {groups, two});
             }),
             Contains("zero_qgz_partition_size") && Contains("2, with mics_shard_size"));
  const LoadedConfig all = resolved(2, {}, {two});
  CHECK(all.config.zero.gradient_ranks == 1);
  CHECK(std::any_of(all.notices.begin(), all.notices.end(), [](const std::string& line) {
    return line.find("2 ranks are no fewer than the 2 data-parallel ones") != std::string::npos;
  }));
  // The resolved file means the same on any hosts.
  LoadedConfig again = load_text(to_json(resolved(8, 4, {})));
  resolve_config(again, 8, {.ranks_per_host = 2});
  CHECK(again.config.zero.gradient_ranks == 4);
}

TEST_CASE("a slip of the pen in a ZeRO key is corrected", "[spec][zero]") {
  CHECK_THAT(error_of_tiny({"zero_optimization.stage3_prefetch_bucket_sise=1"}),
             Contains("did you mean \"stage3_prefetch_bucket_size\"?"));
  CHECK_THAT(error_of_tiny({"stage3_max_live_parameters=1"}),
             Contains("it belongs at \"zero_optimization.stage3_max_live_parameters\""));
}

}  // namespace dstrain
