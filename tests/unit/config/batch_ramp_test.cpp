// A batch that grows: which batches there are, and which are refused.
#include "engine/config/batch_ramp.h"

#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

std::string error_of(const std::string& ramp, int ranks, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"train_batch_size=64", "train_micro_batch_size_per_gpu=2",
                             "gradient_accumulation_steps=null", "rampup_batch_size=" + ramp});
  return config_error_of([&] {
    LoadedConfig loaded = load_tiny(more);
    resolve_config(loaded, ranks);
  });
}

}  // namespace

TEST_CASE("a batch grows by Megatron-LM's count", "[spec][ramp]") {
  const BatchRamp ramp{.start = 16, .increment = 8, .samples = 300};  // to 64: 50 samples each
  const auto batch_at = [&](std::int64_t consumed) { return ramp.batch_at(consumed, 64); };
  CHECK(batch_at(0) == 16);
  CHECK(batch_at(49) == 16);
  CHECK(batch_at(50) == 24);
  CHECK(batch_at(249) == 48);
  CHECK(batch_at(250) == 56);
  CHECK(batch_at(299) == 56);
  CHECK(batch_at(300) == 64);
  CHECK(batch_at(std::int64_t{1} << 40) == 64);
  const BatchRamp none{.start = 64, .increment = 8, .samples = 300};
  CHECK(none.batch_at(0, 64) == 64);
}

TEST_CASE("the ramp is read under Megatron-LM's names", "[spec][ramp]") {
  CHECK(!load_tiny({}).config.rampup_batch_size);
  for (const char* const key :
       {"rampup_batch_size", "rampup-batch-size", "training.rampup_batch_size"}) {
    const auto ramp = load_tiny({std::string(key) + "=[1, 2, 30]"}).config.rampup_batch_size;
    CHECK(ramp == BatchRamp{.start = 1, .increment = 2, .samples = 30});
  }
  for (const char* const wrong : {"[1, 2]", "[1, 2, 3, 4]", "[1, 0, 3]", "16", "[1, 2.5, 3]"}) {
    CHECK_THAT(error_of_tiny({std::string("rampup_batch_size=") + wrong}),
               Contains("must be three positive integers, [start, increment, samples]"));
  }
}

TEST_CASE("every batch of a ramp divides among the ranks, or the nearest that do are named",
          "[spec][ramp]") {
  CHECK(error_of("[16, 8, 1000]", 4).empty());
  CHECK(error_of("[64, 8, 1000]", 4).empty());
  CHECK_THAT(error_of("[12, 5, 1000]", 4),
             Contains("[12, 5, 1000]: begins with 12 and grows by 5") &&
                 Contains("train_micro_batch_size_per_gpu 2 × 4 data-parallel ranks = 8") &&
                 Contains("the nearest are 8 or 16 to begin with, and 8 to grow by"));
  CHECK_THAT(error_of("[16, 40, 1000]", 4),
             Contains("from 16 in steps of 40 it never reaches train_batch_size 64") &&
                 Contains("the nearest to grow by 24 or 48"));
  CHECK_THAT(error_of("[16, 32, 1000]", 4), Contains("the nearest to grow by 24 or 48"));
  CHECK_THAT(error_of("[16, 56, 1000]", 4), Contains("the nearest to grow by 48"));
  CHECK_THAT(error_of("[72, 8, 1000]", 4),
             Contains("begins above train_batch_size 64: expected at most that"));
  const std::vector<std::string> interleaved{"pipeline.stages=2", "pipeline.virtual_stages=2",
                                             "pipeline.schedule=\"interleaved\"",
                                             "model.num_hidden_layers=4"};
  CHECK(error_of("[16, 8, 1000]", 4, interleaved).empty());
  CHECK_THAT(error_of("[16, 4, 1000]", 4, interleaved),
             Contains("× pipeline.stages 2 (\"interleaved\") = 8"));
}

}  // namespace dstrain
