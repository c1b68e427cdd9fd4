// DeepSpeed's batch identity in all its cases, and what a scheduler takes from elsewhere.
#include "tests/unit/config/config_text.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;

struct Batch {
  std::int64_t train = 0;
  std::int64_t micro = 0;
  std::int64_t accumulation = 0;
  bool operator==(const Batch&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Batch& b) {
  return out << b.train << " = " << b.micro << " × " << b.accumulation << " × ranks";
}

/// 0 leaves a key out.
LoadedConfig load_batch(const Batch& given) {
  const auto json = [](std::int64_t value) {
    return value == 0 ? std::string("auto") : std::to_string(value);
  };
  return load_tiny({"train_batch_size=" + json(given.train),
                    "train_micro_batch_size_per_gpu=" + json(given.micro),
                    "gradient_accumulation_steps=" + json(given.accumulation)});
}

Batch resolved(const Batch& given, int ranks) {
  LoadedConfig loaded = load_batch(given);
  resolve_config(loaded, ranks);
  const BatchConfig& batch = loaded.config.batch;
  return {.train = batch.train_batch_size.value(),
          .micro = batch.micro_batch_size.value(),
          .accumulation = batch.gradient_accumulation_steps.value()};
}

std::string batch_error(const Batch& given, int ranks) {
  LoadedConfig loaded = load_batch(given);
  return config_error_of([&] { resolve_config(loaded, ranks); });
}

LoadedConfig resolved_with(const std::vector<std::string>& overrides) {
  LoadedConfig loaded = load_tiny(overrides);
  resolve_config(loaded, 2);
  return loaded;
}

}  // namespace

TEST_CASE("any two or one of the batch sizes give the others", "[spec][batch]") {
  const Batch whole = {.train = 96, .micro = 8, .accumulation = 4};
  CHECK(resolved({.train = 96, .micro = 8, .accumulation = 4}, 3) == whole);
  CHECK(resolved({.train = 96, .micro = 8}, 3) == whole);
  CHECK(resolved({.train = 96, .accumulation = 4}, 3) == whole);
  CHECK(resolved({.micro = 8, .accumulation = 4}, 3) == whole);
  CHECK(resolved({.train = 96}, 3) == Batch{.train = 96, .micro = 32, .accumulation = 1});
  CHECK(resolved({.micro = 8}, 3) == Batch{.train = 24, .micro = 8, .accumulation = 1});
  // With none of them, the micro-batch is that of Hugging Face's Trainer.
  CHECK(resolved({.accumulation = 4}, 3) == whole);
  CHECK(resolved({}, 3) == Batch{.train = 24, .micro = 8, .accumulation = 1});
}

TEST_CASE("an impossible batch identity names the numbers and the nearest fixes", "[spec][batch]") {
  CHECK(
      batch_error({.train = 64, .micro = 8, .accumulation = 4}, 3) ==
      "--set: train_batch_size: 64 contradicts train_micro_batch_size_per_gpu 8 × "
      "gradient_accumulation_steps 4 × 3 data-parallel ranks = 96: set train_batch_size to 96, or "
      "leave one of the three out");
  CHECK(
      batch_error({.train = 64, .micro = 8, .accumulation = 2}, 2) ==
      "--set: train_batch_size: 64 contradicts train_micro_batch_size_per_gpu 8 × "
      "gradient_accumulation_steps 2 × 2 data-parallel ranks = 32: set train_batch_size to 32, or "
      "gradient_accumulation_steps to 4, or train_micro_batch_size_per_gpu to 16, or leave one of "
      "the three out");
  CHECK(batch_error({.train = 100, .micro = 8}, 3) ==
        "--set: train_batch_size: 100 is not a multiple of train_micro_batch_size_per_gpu 8 × 3 "
        "data-parallel ranks = 24: the nearest that are: 96 (gradient_accumulation_steps 4) or 120 "
        "(gradient_accumulation_steps 5)");
  CHECK(batch_error({.train = 2}, 3) ==
        "--set: train_batch_size: 2 is not a multiple of gradient_accumulation_steps 1 × 3 "
        "data-parallel ranks = 3: the nearest that are: 3 (train_micro_batch_size_per_gpu 1)");
  CHECK_THAT(batch_error({.train = 9, .accumulation = 4}, 1),
             Contains("gradient_accumulation_steps 4 × 1 data-parallel rank = 4"));
  CHECK_THAT(batch_error({.micro = 1000000000, .accumulation = 1000000000}, 1000000),
             Contains("is too large"));
}

TEST_CASE("a batch error points at the line of the file", "[spec][batch]") {
  const TemporaryFolder folder;
  const std::string file = folder.write("run.json", kTinyConfig);
  LoadedConfig loaded = load_config(file, {});
  CHECK_THAT(config_error_of([&] { resolve_config(loaded, 3); }),
             Catch::StartsWith(file + ":2:23: train_batch_size: 8 is not a multiple"));
}

TEST_CASE("derived batch sizes say where they come from", "[spec][batch]") {
  LoadedConfig loaded = load_batch({.train = 96, .micro = 8});
  CHECK(origin_of(loaded, "gradient_accumulation_steps").empty());
  resolve_config(loaded, 3);
  CHECK(value_of_path(loaded, "gradient_accumulation_steps") == "4");
  CHECK(origin_of(loaded, "gradient_accumulation_steps") ==
        "derived: train_batch_size / (train_micro_batch_size_per_gpu 8 × 3 data-parallel ranks)");
}

TEST_CASE("total_num_steps is the length of the run unless given", "[spec][resolve]") {
  const LoadedConfig loaded = resolved_with(
      {"scheduler={\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": \"auto\"}}"});
  CHECK(loaded.config.scheduler.total_num_steps == 10);
  CHECK(origin_of(loaded, "scheduler.params.total_num_steps") == "derived: training.steps");
  CHECK(resolved_with({"scheduler={\"type\": \"WarmupCosineLR\", \"params\": "
                       "{\"total_num_steps\": 55}}"})
            .config.scheduler.total_num_steps == 55);
}

TEST_CASE("WarmupLR peaks at the optimizer's lr, WarmupDecayLR at 0.001", "[spec][resolve]") {
  const std::string lr = "optimizer.params.lr=3e-4";
  const LoadedConfig warmup = resolved_with({lr, "scheduler.type=WarmupLR"});
  CHECK(warmup.config.scheduler.warmup_max_lr == 3e-4);
  CHECK_THAT(origin_of(warmup, "scheduler.params.warmup_max_lr"), Contains("DeepSpeed 0.19"));
  const LoadedConfig decay = resolved_with({lr, "scheduler.type=WarmupDecayLR"});
  CHECK(decay.config.scheduler.warmup_max_lr == 0.001);
  CHECK_THAT(decay.notices.at(0), Contains("0.001, DeepSpeed's default for WarmupDecayLR"));
  CHECK(resolved_with({lr,
                       "scheduler={\"type\": \"WarmupDecayLR\", \"params\": "
                       "{\"warmup_max_lr\": \"auto\"}}"})
            .config.scheduler.warmup_max_lr == 3e-4);
  CHECK_THAT(
      config_error_of([] {
        resolved_with({"scheduler={\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": 1}}"});
      }),
      Contains("warmup_min_lr: 1 is greater than warmup_max_lr 0.001"));
}

TEST_CASE("a warm-up longer than the run is reported", "[spec][resolve]") {
  const LoadedConfig loaded = resolved_with({"scheduler.type=WarmupCosineLR"});
  CHECK_THAT(loaded.notices.at(0),
             Contains("total_num_steps 10 is less than warmup_num_steps 1000"));
}

TEST_CASE("the clipping that nobody asked for is reported", "[spec][resolve]") {
  CHECK(resolved_with({}).notices ==
        std::vector<std::string>{
            "gradient_clipping: 1, DeepSpeed 0.19's default (0, off, in older releases)"});
  CHECK(resolved_with({"gradient_clipping=1.0"}).notices.empty());
}

TEST_CASE("nothing of a resolved config is open", "[spec][resolve]") {
  for (const char* type : {"", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"}) {
    std::vector<std::string> overrides;
    if (*type != '\0') overrides.push_back(std::string("scheduler.type=") + type);
    const Config c = resolved_with(overrides).config;
    INFO(type);
    CHECK(c.batch.train_batch_size.has_value());
    CHECK(c.batch.micro_batch_size.has_value());
    CHECK(c.batch.gradient_accumulation_steps.has_value());
    CHECK(c.scheduler.total_num_steps.has_value());
    CHECK(c.scheduler.warmup_max_lr.has_value());
  }
}

}  // namespace dstrain
