// DeepSpeed's "elasticity": its own results (tests/golden/deepspeed_elasticity.json, written by
// scripts/make_elasticity_golden.py), and what the block does to a config.
#include "engine/config/elasticity.h"

#include <fstream>

#include <nlohmann/json.hpp>

#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

ElasticityConfig block_of(const json& block) {
  ElasticityConfig config;
  config.enabled = true;
  config.max_train_batch_size = block.at("max_train_batch_size");
  config.micro_batch_sizes = block.at("micro_batch_sizes").get<std::vector<std::int64_t>>();
  config.min_gpus = block.value("min_gpus", config.min_gpus);
  config.max_gpus = block.value("max_gpus", config.max_gpus);
  config.num_gpus_per_node = block.value("num_gpus_per_node", config.num_gpus_per_node);
  config.model_parallel_size = block.value("model_parallel_size", config.model_parallel_size);
  config.prefer_larger_batch = block.value("prefer_larger_batch", config.prefer_larger_batch);
  config.version =
      block.value("version", 0.2) == 0.1 ? ElasticityVersion::k01 : ElasticityVersion::k02;
  return config;
}

TEST_CASE("the elastic batch is DeepSpeed's, for every number of ranks", "[spec][elasticity]") {
  const json golden = json::parse(std::ifstream("tests/golden/deepspeed_elasticity.json"));
  REQUIRE(golden.at("cases").size() > 500);
  int with_batch = 0;
  for (const json& wanted : golden.at("cases")) {
    INFO(wanted.dump());
    const auto found =
        elastic_batch(block_of(wanted.at("elasticity")), wanted.at("world_size").get<int>());
    if (wanted.contains("error")) {
      CHECK((!found || !found->micro_batch_size));
      continue;
    }
    ++with_batch;
    REQUIRE(found);
    CHECK(found->train_batch_size == wanted.at("train_batch_size").get<std::int64_t>());
    CHECK(found->micro_batch_size == wanted.at("micro_batch_size").get<std::int64_t>());
    CHECK(found->valid_ranks.size() == wanted.at("num_valid").get<std::size_t>());
    std::vector<std::int64_t> first = found->valid_ranks;
    first.resize(std::min<std::size_t>(first.size(), 20));
    CHECK(first == wanted.at("valid").get<std::vector<std::int64_t>>());
  }
  CHECK(with_batch > 300);
}

const std::string kBlock =
    R"(elasticity={"enabled": true, "max_train_batch_size": 100, "micro_batch_sizes": [2, 3],
       "version": 0.1})";
const std::string kNoBatch = "train_batch_size=auto";

LoadedConfig resolved(const std::vector<std::string>& overrides, int ranks) {
  LoadedConfig loaded = load_tiny(overrides);
  resolve_config(loaded, ranks);
  return loaded;
}

std::string refusal(std::vector<std::string> overrides, int ranks = 2) {
  return config_error_of([&] { resolved(overrides, ranks); });
}

TEST_CASE("an elastic config keeps its batch over numbers of ranks", "[spec][elasticity]") {
  for (const int ranks : {1, 2, 4, 8}) {
    INFO(ranks);
    const BatchConfig batch = resolved({kNoBatch, kBlock}, ranks).config.batch;
    CHECK(batch.train_batch_size == 96);
    CHECK(*batch.micro_batch_size * *batch.gradient_accumulation_steps * ranks == 96);
    CHECK(batch.micro_batch_size == 3);
  }
  CHECK(resolved({kNoBatch, kBlock, "tensor_parallel.size=2"}, 4).config.batch.micro_batch_size ==
        3);
}

TEST_CASE("a resolved elastic config can be run again", "[spec][elasticity]") {
  const LoadedConfig first = resolved({kNoBatch, kBlock}, 4);
  LoadedConfig again = load_text(to_json(first));
  resolve_config(again, 4);
  CHECK(again.config == first.config);
}

TEST_CASE("what an elastic config must not say is refused with an error", "[spec][elasticity]") {
  CHECK_THAT(refusal({kBlock}), Contains("elasticity chooses train_batch_size"));
  CHECK_THAT(refusal({kNoBatch, kBlock}, 5),
             Contains("5 data-parallel ranks are not among those that can share a batch of 96: "
                      "1, 2, 3, 4, 6, 8, 12, 16"));
  CHECK_THAT(refusal({kNoBatch, R"(elasticity={"enabled": true})"}),
             Contains("elasticity.max_train_batch_size: is missing"));
  CHECK_THAT(refusal({kNoBatch, kBlock, "elasticity.micro_batch_sizes=[2, 200]"}),
             Contains("each must be at most elasticity.max_train_batch_size 100"));
  CHECK_THAT(refusal({kNoBatch, kBlock, "elasticity.model_parallel_size=2"}),
             Contains("needs elasticity.version 0.2"));
  CHECK_THAT(refusal({kNoBatch, kBlock, "elasticity.min_gpus=9", "elasticity.max_gpus=8"}),
             Contains("is more than elasticity.max_gpus 8"));
  CHECK_THAT(error_of_tiny({"elasticity.version=0.3"}), Contains("must be 0.1 or 0.2"));
  CHECK_THAT(error_of_tiny({"elasticity.micro_batch_sizes=[]"}), Contains("positive integers"));
}

TEST_CASE("an elasticity block that is not enabled does nothing", "[spec][elasticity]") {
  CHECK(resolved({R"(elasticity={"enabled": false, "max_train_batch_size": 3})"}, 2)
            .config.batch.train_batch_size == 8);
}

}  // namespace
}  // namespace dstrain
