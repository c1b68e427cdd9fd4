// The layout at the end of an error: right for every rule at once, and the nearest that is.
#include "engine/config/nearest_layout.h"

#include "tests/unit/config/parallel_text.h"

namespace dstrain {
namespace {

/// kTinyConfig's run over another layout: whether all of it resolves.
bool resolves(LoadedConfig loaded, const Layout& layout) {
  loaded.config.tensor_parallel.size = static_cast<int>(layout.tensor);
  loaded.config.pipeline.stages = static_cast<int>(layout.stages);
  try {
    resolve_config(loaded, static_cast<int>(layout.ranks));
  } catch (const ConfigError&) {
    return false;
  }
  return true;
}

LoadedConfig parallel_run(const std::vector<std::string>& sets) {
  std::vector<std::string> overrides = {kModel};
  overrides.insert(overrides.end(), sets.begin(), sets.end());
  return load_tiny(overrides);
}

}  // namespace

TEST_CASE("one broken rule is mended by one change, of the degrees first", "[spec][parallel]") {
  // Ranks that do not divide.
  CHECK(advice_of(8, {"tensor_parallel.size=3"}) == "2 x 1 on 8");
  CHECK(advice_of(8, {"pipeline.stages=3"}) == "1 x 4 on 8");
  // Heads, shared heads, columns of the MLP.
  CHECK(advice_of(8, {"tensor_parallel.size=8"}) == "2 x 1 on 8");
  CHECK(advice_of(12, {"tensor_parallel.size=4"}) == "3 x 1 on 12");
  CHECK(advice_of(6, {"tensor_parallel.size=3", "model.intermediate_size=100"}) == "2 x 1 on 6");
  // Whole tensors.
  CHECK(advice_of(4, {"optimizer={\"type\": \"Muon\"}", "tensor_parallel.size=2", kTwoStages}) ==
        "1 x 2 on 4");
  // Blocks, and chunks of them.
  CHECK(advice_of(8, {"pipeline.stages=8"}) == "1 x 4 on 8");
  CHECK(advice_of(1, {kInterleaved, "pipeline.stages=1"}) == "1 x 2 on 2");
  CHECK(advice_of(3, {kInterleaved, "pipeline.stages=1", "gradient_accumulation_steps=6"}) ==
        "1 x 3 on 3");
  // A written partition.
  CHECK(advice_of(4, {kTwoStages, "pipeline.partition=[3,1,1,1]"}) == "1 x 4 on 4");
  // Numbers of ranks that a micro-batch's tokens divide among; 2 sequences of 128.
  CHECK(advice_of(6, {"tensor_parallel={\"size\": 6, \"sequence_parallel\": true}"}) ==
        "2 x 1 on 6");
  CHECK(advice_of(2, {kTwoStages, "pipeline.partition=[2,2,2]"}) == "1 x 3 on 3");
  // Rounds of micro-batches: 4 a step and 3 stages.
  CHECK(advice_of(6, {kInterleaved, "pipeline.stages=3"}) == "1 x 2 on 6");
}

TEST_CASE("ranks change where that keeps both degrees", "[spec][parallel]") {
  CHECK(advice_of(5, {"tensor_parallel.size=2", kTwoStages}) == "2 x 2 on 4");
  CHECK(advice_of(7, {"tensor_parallel.size=2", kTwoStages}) == "2 x 2 on 8");
  CHECK(advice_of(6, {"tensor_parallel.size=2", "pipeline.stages=4"}) == "2 x 3 on 6");
  CHECK(advice_of(1, {"tensor_parallel.size=3", "pipeline.stages=6"}) == "3 x 6 on 18");
  // 6 and 8 are equally far from 7: 6 wins, as that many ranks exist, unless the batch rules it
  // out.
  CHECK(advice_of(7, {kInterleaved}) == "1 x 2 on 6");
  CHECK(advice_of(7, {kInterleaved, "train_batch_size=32", "gradient_accumulation_steps=auto"}) ==
        "1 x 2 on 8");
}

TEST_CASE("two broken rules are mended at once", "[spec][parallel]") {
  // 8 suits neither the heads nor, with 3 stages, the ranks.
  CHECK(advice_of(8, {"tensor_parallel.size=8", "pipeline.stages=3"}) == "2 x 4 on 8");
  // Too many stages, and a size that the heads refuse.
  CHECK(advice_of(40, {"tensor_parallel.size=5", "pipeline.stages=8"}) == "2 x 5 on 40");
  // 3 and 6 suit 12 ranks and the heads, and the tokens of a micro-batch only 1 and 2.
  CHECK(advice_of(12, {"tensor_parallel={\"size\": 4, \"sequence_parallel\": true}"}) ==
        "2 x 1 on 12");
  // 3 stages suit 9 ranks, and not the rounds of micro-batches.
  CHECK(advice_of(9, {kInterleaved}) == "1 x 2 on 8");
  // 42 sequences of a step, 2 at once, divide over 1 copy of the model, not over 2.
  CHECK(advice_of(6, {"tensor_parallel.size=4", "train_batch_size=42",
                      "gradient_accumulation_steps=auto"}) == "6 x 1 on 6");
}

TEST_CASE("where no layout would do, that is said", "[spec][parallel]") {
  // 7 sequences cannot be cut into twos, nor one micro-batch into rounds of two.
  const std::string none =
      "with the rest as it is, no layout on 8 ranks or a few more or less would do";
  CHECK(advice_of(8, {"tensor_parallel.size=3", "train_batch_size=7",
                      "gradient_accumulation_steps=auto"}) == none);
  CHECK(advice_of(8, {kInterleaved, "tensor_parallel.size=8", "gradient_accumulation_steps=1"}) ==
        none);
}

TEST_CASE("errors that no layout mends end without one", "[spec][parallel]") {
  CHECK(advice_of(2, {kTwoStages, "pipeline.virtual_stages=2"}) == "");
  CHECK(advice_of(2, {"pipeline.virtual_stages=2"}) == "");
  CHECK(advice_of(2, {kTwoStages, "pipeline.partition=[4,3]"}) == "");
  CHECK(advice_of(2, {kTwoStages, "pipeline.partition=[4,3,2]"}) == "");
}

TEST_CASE("the advised layout resolves, and none with fewer changes does", "[spec][parallel]") {
  const std::vector<std::vector<std::string>> runs = {
      {},
      {"train_batch_size=48", "train_micro_batch_size_per_gpu=4"},
      {"train_micro_batch_size_per_gpu=3", "train_batch_size=auto",
       "tensor_parallel.sequence_parallel=true"},
      {"pipeline={\"schedule\": \"interleaved\", \"virtual_stages\": 2}",
       "gradient_accumulation_steps=4", "train_batch_size=auto",
       "train_micro_batch_size_per_gpu=1"},
      {"pipeline.partition=[1,2,3]", "train_batch_size=auto", "train_micro_batch_size_per_gpu=1"},
      {"optimizer={\"type\": \"Lamb\"}"},
  };
  const auto count = [](bool a, bool b, bool c) { return int{a} + int{b} + int{c}; };
  int advised = 0;
  for (const auto& sets : runs) {
    const LoadedConfig loaded = parallel_run(sets);
    for (const std::int64_t tensor : {1, 2, 4, 5, 12}) {
      for (const std::int64_t stages : {1, 2, 3, 4, 7}) {
        for (const std::int64_t ranks : {1, 2, 4, 6, 7, 9, 12}) {
          const Layout asked = {tensor, stages, ranks};
          Config config = loaded.config;
          config.tensor_parallel.size = static_cast<int>(tensor);
          config.pipeline.stages = static_cast<int>(stages);
          const auto nearest = nearest_layout(config, ranks);
          INFO(fmt::format("{} x {} on {}, {}", tensor, stages, ranks,
                           ::Catch::Detail::stringify(sets)));
          if (resolves(loaded, asked)) {
            REQUIRE(nearest == asked);
            continue;
          }
          if (!nearest) {
            REQUIRE_FALSE(resolves(loaded, {1, 1, ranks}));
            continue;
          }
          ++advised;
          REQUIRE(resolves(loaded, *nearest));
          const int changes =
              count(nearest->tensor != tensor, nearest->stages != stages, nearest->ranks != ranks);
          bool one_would_do = false;
          bool two_would_do = false;
          for (std::int64_t other = 1; other <= ranks; ++other) {
            one_would_do = one_would_do || resolves(loaded, {other, stages, ranks}) ||
                           resolves(loaded, {tensor, other, ranks});
            for (std::int64_t second = 1; changes > 2 && second <= ranks; ++second) {
              two_would_do = two_would_do || resolves(loaded, {other, second, ranks});
            }
          }
          if (one_would_do) REQUIRE((changes == 1 && nearest->ranks == ranks));
          const std::int64_t unit = tensor * stages;
          for (const std::int64_t other : {(ranks - 1) / unit * unit, (ranks / unit + 1) * unit}) {
            const bool ranks_would_do = other > 0 && resolves(loaded, {tensor, stages, other});
            if (ranks_would_do) REQUIRE(changes == 1);
          }
          REQUIRE_FALSE(two_would_do);
        }
      }
    }
  }
  CHECK(advised > 300);
}

}  // namespace dstrain
