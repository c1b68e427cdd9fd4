// Popular models in layouts drawn at random: each is estimated, and its books balance, or it is
// refused with a sentence. What breaks a check of our own inside fails the test with its message.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <random>
#include <set>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "cmd/memory/memory_report.h"
#include "engine/config/config_error.h"
#include "engine/train/memory_estimate.h"
#include "tests/harness/popular_models.h"
#include "tests/harness/sweep.h"
#include "tests/unit/data/scratch_folder.h"

namespace dstrain::test {
namespace {

/// Draws from the standard's own generator without its distributions, whose results differ from
/// library to library: a seed means the same settings everywhere.
class Dice {
 public:
  explicit Dice(std::uint32_t seed) : bits_(seed) {}

  std::size_t below(std::size_t limit) { return bits_() % limit; }
  bool one_in(std::size_t times) { return below(times) == 0; }
  template <typename T, std::size_t N>
  T pick(const std::array<T, N>& of) {
    return of[below(N)];
  }

 private:
  std::mt19937 bits_;
};

struct Setting {
  const PopularModel* model = nullptr;
  std::vector<std::string> overrides;
  int world = 1;
  EstimatedDevice device;
  std::optional<MemoryLimit> limit;

  [[nodiscard]] std::string text() const {
    return fmt::format("{}, {} ranks on {}: --set {}", model->name, world,
                       device.cuda ? "GPUs" : "CPUs", fmt::join(overrides, " --set "));
  }
};

/// Three of four are layouts that somebody would ask for; the others need not fit together.
Setting draw(Dice& dice) {
  Setting setting{.model = &kPopularModels[dice.below(kPopularModels.size())]};
  const auto set = [&](const char* key, const auto& value) {
    setting.overrides.push_back(fmt::format("{}={}", key, value));
  };
  const bool any = dice.one_in(4);
  const auto divides = [&](int ranks) {
    return setting.model->heads % ranks == 0 && setting.model->feed_forward % ranks == 0;
  };
  int tensor = dice.pick(std::array{1, 1, 2, 4, 8});
  while (!any && !divides(tensor))
    tensor /= 2;
  const int stages = dice.pick(std::array{1, 1, 1, 2, 3, 4, 8});
  const int data = dice.pick(std::array{1, 2, 3, 4, 8, 16});
  setting.world = tensor * stages * data + (any && dice.one_in(8) ? 1 : 0);

  const std::string_view schedule = dice.pick(std::array{"1f1b", "gpipe", "interleaved"});
  const bool interleaved = schedule == "interleaved" && (stages > 1 || any);
  const std::int64_t rounds = dice.pick(std::array{1, 2, 3});
  set("tensor_parallel.size", tensor);
  if (dice.one_in(2)) set("tensor_parallel.sequence_parallel", "true");
  set("pipeline.stages", stages);
  if (interleaved || schedule != "interleaved") set("pipeline.schedule", schedule);
  if (interleaved) set("pipeline.virtual_stages", dice.pick(std::array{2, 2, 3}));
  set("gradient_accumulation_steps",
      interleaved && !any ? rounds * stages
                          : dice.pick(std::array<std::int64_t, 6>{1, 1, 2, 3, 4, 8}));
  set("train_micro_batch_size_per_gpu", dice.pick(std::array{1, 1, 2, 4, 8}));
  set("zero_optimization.stage", dice.below(4));
  if (dice.one_in(4)) set("zero_optimization.overlap_comm", "false");
  if (dice.one_in(4)) {
    set("zero_optimization.prefetch_bucket_size",
        dice.pick(std::array{0, 50'000'000, 500'000'000}));
    set("zero_optimization.max_live_parameters", dice.pick(std::array{0, 1'000'000'000}));
    set("zero_optimization.max_reuse_distance",
        dice.pick(std::array{0, 100'000'000, 1'000'000'000}));
  }
  set("activation_checkpointing.granularity",
      dice.pick(std::array{"\"none\"", "\"selective\"", "\"full\""}));
  set("data.sequence_length", std::min<std::int64_t>(dice.pick(std::array{512, 1024, 2048, 4096}),
                                                     any ? 4096 : setting.model->positions));
  const std::string_view precision = dice.pick(std::array{"fp32", "bf16", "bf16", "fp16", "fp8"});
  const bool bf16 = precision == "bf16" || precision == "fp8";
  set("bf16.enabled", bf16);
  set("fp16.enabled", precision == "fp16");
  if (precision == "fp8") set("fp8.enabled", true);
  const std::array formats{"fp32", "bf16", "fp16"};
  const char* const own = bf16 ? "bf16" : precision == "fp16" ? "fp16" : "fp32";
  if (dice.one_in(5)) {
    const char* const format = any ? dice.pick(formats) : dice.pick(std::array{"fp32", own});
    set("data_types.grad_accum_dtype", format);
  }
  if (dice.one_in(5)) {
    set("communication_data_type", any ? dice.pick(formats) : dice.pick(std::array{"fp32", own}));
  }
  if (dice.one_in(8) && (any || bf16)) set("bf16.bf16_optimizer_states", true);
  if (dice.one_in(8) && (any || bf16)) set("bf16.bf16_master_weights_and_grads", true);
  if (dice.one_in(4)) {
    const bool whole = tensor == 1 || any;
    set("optimizer.type", whole ? dice.pick(std::array{"Muon", "Lamb", "SGD"})
                                : dice.pick(std::array{"Lion", "SGD", "Adagrad", "RMSprop"}));
  }
  setting.device = {
      .cuda = dice.one_in(2), .threads = 2, .ranks_per_host = std::min(8, setting.world)};
  if (dice.one_in(16)) setting.limit = parse_memory_limit("H100");
  return setting;
}

/// The largest that a component of the timeline has anywhere.
std::int64_t most(const MemoryTimeline& timeline, MemoryComponent component) {
  std::int64_t bytes = 0;
  for (const MemoryMoment& moment : timeline.moments) {
    bytes = std::max(bytes, moment.in_use[component]);
  }
  return bytes;
}

void check_books(const MemoryEstimate& estimate, int chunks) {
  const MemoryTimeline& timeline = estimate.timeline;
  REQUIRE(timeline.moments.size() > 2);
  CHECK(timeline.held.total() == estimate.planned_bytes);
  CHECK(estimate.planned_bytes <= estimate.bytes());
  const std::int64_t peak = timeline.highest().in_use.total();
  for (const MemoryComponent component : kMemoryComponents) {
    const std::int64_t held = timeline.held[component];
    INFO(name_of(component));
    CHECK(std::all_of(timeline.moments.begin(), timeline.moments.end(),
                      [&](const MemoryMoment& moment) {
                        return 0 <= moment.in_use[component] && moment.in_use[component] <= held;
                      }));
  }
  CHECK(std::all_of(timeline.moments.begin(), timeline.moments.end(),
                    [&](const MemoryMoment& moment) { return moment.in_use.total() <= peak; }));
  // Temporary memory fills the space reserved for it at some time, and is released at the end. A
  // rank's chunks of the model need not have all their micro-batches in flight at the same time,
  // and buckets and gathered units leave gaps where units of several sizes share memory.
  for (const MemoryComponent component :
       {MemoryComponent::kAttentionActivations, MemoryComponent::kMlpActivations,
        MemoryComponent::kNormActivations, MemoryComponent::kOtherActivations,
        MemoryComponent::kLogits}) {
    if (chunks == 1) {
      CHECK(most(timeline, component) == timeline.held[component]);
    } else {
      CHECK(chunks * most(timeline, component) >= timeline.held[component]);
    }
  }
  for (const MemoryComponent component :
       {MemoryComponent::kGatherBuffers, MemoryComponent::kBuckets}) {
    CHECK(2 * most(timeline, component) >= timeline.held[component]);
  }
  const ComponentBytes& end = timeline.moments.back().in_use;
  CHECK(end[MemoryComponent::kAttentionActivations] == 0);
  CHECK(end[MemoryComponent::kBuckets] == 0);
  CHECK(end[MemoryComponent::kGatherBuffers] == 0);
  // Parameters, gradients and states stand all the time.
  CHECK(end[MemoryComponent::kParameters] == timeline.held[MemoryComponent::kParameters]);
  CHECK(end[MemoryComponent::kOptimizer] == timeline.held[MemoryComponent::kOptimizer]);
}

struct Tally {
  int estimated = 0;
  int refused = 0;
};

Tally estimate_at_random(std::uint32_t seed, int settings) {
  const ScratchFolder folder;
  for (const PopularModel& model : kPopularModels) {
    write_file(folder / (std::string(model.name) + "/config.json"), config_json(model));
  }
  Dice dice(seed);
  Tally tally;
  for (int i = 0; i < settings; ++i) {
    const Setting setting = draw(dice);
    INFO("seed " << seed << ", setting " << i << ": " << setting.text());
    Config config;
    const ConfigWith config_with = [&](const std::vector<std::string>& more) {
      std::vector<std::string> all = setting.overrides;
      all.insert(all.end(), more.begin(), more.end());
      LoadedConfig loaded = load_config(folder / setting.model->name,
                                        {.overrides = all, .accept_model_config = true});
      resolve_config(loaded, setting.world);
      if (more.empty()) config = loaded.config;
      return loaded;
    };
    try {
      const MemoryEstimate estimate =
          estimate_memory(config_with, setting.world, setting.device, setting.limit);
      check_books(estimate, config.pipeline.virtual_stages);
      CHECK_FALSE(to_text(estimate, config).empty());
      CHECK(nlohmann::json::parse(to_json(estimate, config)).is_object());
      tally.estimated += 1;
    } catch (const ConfigError& error) {
      CHECK(std::string_view(error.what()).size() > 20);
      tally.refused += 1;
    }
  }
  return tally;
}

TEST_CASE("popular models in settings at random are estimated or refused", "[cmd][estimate]") {
  const int settings = 400 / testing::one_in(4);
  const Tally tally = estimate_at_random(/*seed=*/16, settings);
  CHECK(tally.estimated >= 62 * settings / 100);
  CHECK(tally.refused >= 5 * settings / 100);
}

TEST_CASE("thousands of settings at random are estimated or refused", "[cmd][estimate][slow]") {
  const int settings = 4000 / testing::one_in(8);
  const Tally tally = estimate_at_random(/*seed=*/2600, settings);
  WARN(tally.estimated << " settings estimated, " << tally.refused << " refused");
  CHECK(tally.estimated >= 65 * settings / 100);
}

}  // namespace
}  // namespace dstrain::test
