#include "engine/train/memory_fit.h"

#include <algorithm>

#include <catch2/catch.hpp>

#include "engine/config/config_error.h"
#include "engine/train/make_run_plan.h"
#include "engine/train/run_outline.h"

namespace dstrain::test {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kOverhead = 100 * kMiB;

ConfigWith config_with(std::string file, std::vector<std::string> overrides, int world) {
  return [=](const std::vector<std::string>& more) {
    std::vector<std::string> all = overrides;
    all.insert(all.end(), more.begin(), more.end());
    LoadedConfig loaded = load_config(file, {.overrides = all});
    resolve_config(loaded, world);
    return loaded;
  };
}

/// From the outline of all stages, not through the planner of the remedies.
std::int64_t held(const ConfigWith& with, const std::vector<std::string>& overrides, int world) {
  return fullest(outline_run(with(overrides).config, world).stages).total_bytes() + kOverhead;
}

MemoryFit fit(const ConfigWith& with, int world, std::int64_t limit) {
  return examine_fit({.config_with = with,
                      .world_size = world,
                      .limit = {.bytes = limit, .name = "", .accelerator = {}},
                      .overhead = [](const RunPlan&) { return kOverhead; },
                      .cluster = {.ranks_per_host = world}});
}

struct Case {
  const char* file;
  std::vector<std::string> overrides;
  int world;
  double share;  ///< of what the run holds, that there is
};

TEST_CASE("every remedy fits as the run that it describes would", "[train][plan]") {
  const auto given =
      GENERATE(Case{"configs/gpt2-124m.json", {"train_micro_batch_size_per_gpu=4"}, 4, 0.9},
               Case{"configs/gpt2-124m.json", {"train_micro_batch_size_per_gpu=4"}, 4, 0.4},
               Case{"configs/llama-70b-tp8-pp8.json", {}, 64, 0.8},
               Case{"configs/llama-7b-tp8.json", {"tensor_parallel.size=1"}, 8, 0.5});
  CAPTURE(given.file, given.world, given.share);
  const ConfigWith with = config_with(given.file, given.overrides, given.world);
  const std::int64_t now = held(with, {}, given.world);
  const auto limit = static_cast<std::int64_t>(static_cast<double>(now) * given.share);
  const MemoryFit found = fit(with, given.world, limit);
  CHECK(found.bytes == now);
  CHECK_FALSE(found.fits);
  REQUIRE_FALSE(found.remedies.empty());
  const std::int64_t batch = *with({}).config.batch.train_batch_size;
  for (const Remedy& remedy : found.remedies) {
    CAPTURE(remedy.what, remedy.overrides);
    CHECK(remedy.bytes <= limit);
    CHECK(held(with, remedy.overrides, given.world) == remedy.bytes);
    CHECK(*with(remedy.overrides).config.batch.train_batch_size == batch);
    CHECK(remedy.relative_step_time > 0.0);
  }
  CHECK(std::is_sorted(found.remedies.begin(), found.remedies.end(),
                       [](const Remedy& a, const Remedy& b) {
                         return a.relative_step_time < b.relative_step_time;
                       }));
}

TEST_CASE("states that fit elsewhere are a remedy, the host's memory before a disk",
          "[train][plan][offload]") {
  const auto remedies = [](const char* device, const char* optimizer) {
    const std::vector<std::string> overrides = {
        "train_micro_batch_size_per_gpu=1",       "train_batch_size=1",
        "gradient_accumulation_steps=1",          "activation_checkpointing.granularity=full",
        std::string("training.device=") + device, std::string("optimizer.type=") + optimizer};
    const ConfigWith with = config_with("configs/gpt2-124m.json", overrides, 1);
    // Parameters and gradients of 124 million, and little else.
    return fit(with, 1, kOverhead + 1200 * kMiB).remedies;
  };
  const std::string key = "zero_optimization.offload_optimizer.device=";
  const auto has = [](const std::vector<Remedy>& found, const std::string& override) {
    return std::any_of(found.begin(), found.end(), [&](const Remedy& remedy) {
      const auto& all = remedy.overrides;
      return std::find(all.begin(), all.end(), override) != all.end();
    });
  };
  CHECK(has(remedies("cuda", "AdamW"), key + "cpu"));
  CHECK_FALSE(has(remedies("cpu", "AdamW"), key + "cpu"));
  CHECK(has(remedies("cpu", "AdamW"), key + "nvme"));
  CHECK_FALSE(has(remedies("cuda", "Lamb"), key + "cpu"));
}

TEST_CASE("parameters that exceed the memory by themselves have a disk as remedy",
          "[train][plan][offload]") {
  const std::vector<std::string> overrides =
      GENERATE(std::vector<std::string>{}, std::vector<std::string>{"checkpoint.async=true"},
               std::vector<std::string>{"zero_optimization.stage=3",
                                        "zero_optimization.offload_optimizer.device=nvme",
                                        "zero_optimization.offload_optimizer.nvme_path=/scratch",
                                        "zero_optimization.offload_optimizer.ratio=0.5"});
  CAPTURE(overrides);
  std::vector<std::string> all = {"train_micro_batch_size_per_gpu=1",
                                  "train_batch_size=1",
                                  "gradient_accumulation_steps=1",
                                  "activation_checkpointing.granularity=full",
                                  "training.device=cpu",
                                  "tensor_parallel.size=1",
                                  "checkpoint.interval=0"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  const ConfigWith with = config_with("configs/llama-7b-tp8.json", all, 1);
  const std::string states = "zero_optimization.offload_optimizer.";
  std::vector<std::string> on_disk = {states + "device=nvme", states + "nvme_path=/scratch",
                                      states + "ratio=1.0", "checkpoint.async=false"};
  const std::int64_t states_alone = held(with, on_disk, 1);
  on_disk.insert(on_disk.end(),
                 {"zero_optimization.stage=3", "zero_optimization.offload_param.device=nvme"});
  const std::int64_t parameters_too = held(with, on_disk, 1);
  REQUIRE(parameters_too < states_alone);
  const std::vector<Remedy> remedies = fit(with, 1, parameters_too).remedies;
  REQUIRE(remedies.size() == 1);
  const Remedy& remedy = remedies.front();
  CAPTURE(remedy.what, remedy.overrides);
  CHECK(remedy.bytes == parameters_too);
  CHECK(held(with, remedy.overrides, 1) == parameters_too);
  CHECK_THAT(remedy.overrides, Catch::Matchers::VectorContains(
                                   std::string("zero_optimization.offload_param.device=nvme")));
  const bool has_disk = !with({}).config.offload.states_path.empty();
  CHECK_THAT(remedy.what,
             Catch::Contains(has_disk ? "optimizer states and parameters on the disk of /scratch"
                                      : "optimizer states and parameters on the disk of /var/tmp"));
  // Nothing is named that is so already.
  const auto sets = [&](const std::string& override) {
    return std::count(remedy.overrides.begin(), remedy.overrides.end(), override) > 0;
  };
  CHECK(sets("zero_optimization.stage=3") != has_disk);
  CHECK(sets(states + "nvme_path=/var/tmp") != has_disk);
  CHECK(sets(states + "ratio=1.0") == has_disk);
  CHECK(sets("checkpoint.async=false") == with({}).config.checkpoint.async);
}

TEST_CASE("offloading to a slower place costs more", "[train][plan][offload]") {
  const auto seconds = [](std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"training.device=cuda", "zero_optimization.stage=3"});
    const Config config = config_with("configs/gpt2-124m.json", overrides, 1)({}).config;
    return price_step(config, make_run_plan(config, 1, 0), {});
  };
  const std::string states = "zero_optimization.offload_optimizer.";
  const double on_device = seconds({});
  const double on_host = seconds({states + "device=cpu"});
  const double parameters_too =
      seconds({states + "device=cpu", "zero_optimization.offload_param.device=cpu"});
  const double on_disk = seconds({states + "device=nvme", states + "nvme_path=/x"});
  const auto on_disk_with = [&](const char* parameters) {
    return seconds({states + "device=nvme", states + "nvme_path=/x",
                    std::string("zero_optimization.offload_param.device=") + parameters});
  };
  CHECK(on_device < on_host);
  CHECK(on_host < parameters_too);
  CHECK(parameters_too < on_disk);
  CHECK(on_disk < on_disk_with("cpu"));
  CHECK(on_disk_with("cpu") < on_disk_with("nvme"));
}

/// Asks about GPUs on which the run fits once its states have left them. A rank takes 1 MiB of its
/// host beside what is planned there.
FitQuestion about_gpus(const ConfigWith& with, int world, const std::vector<HostRoom>& hosts) {
  return {.config_with = with,
          .world_size = world,
          .limit = {.bytes = held(with, {"zero_optimization.offload_optimizer.device=cpu"}, world),
                    .name = "",
                    .accelerator = {}},
          .overhead = [](const RunPlan&) { return kOverhead; },
          .cluster = {.ranks_per_host = 2},
          .host_bytes = [](const RunPlan& plan) { return kMiB + plan.memory.bytes(Space::kHost); },
          .hosts = hosts};
}

const std::vector<std::string> kOnGpus = {"train_micro_batch_size_per_gpu=1",
                                          "train_batch_size=8",
                                          "activation_checkpointing.granularity=full",
                                          "training.device=cuda",
                                          "checkpoint.interval=0",
                                          "zero_optimization.stage=1"};

const Remedy* remedy_with(const MemoryFit& found, const std::string& override) {
  for (const Remedy& remedy : found.remedies) {
    const auto& all = remedy.overrides;
    if (std::find(all.begin(), all.end(), override) != all.end()) return &remedy;
  }
  return nullptr;
}

const std::string kStatesToHost = "zero_optimization.offload_optimizer.device=cpu";
const std::string kStatesToDisk = "zero_optimization.offload_optimizer.device=nvme";

/// What the ranks [first, end) keep in a space together, each by its own plan.
std::int64_t kept_by(const Config& config, int world, int first, int end, Space space) {
  std::int64_t bytes = 0;
  for (int rank = first; rank < end; ++rank) {
    bytes += make_run_plan(config, world, rank).memory.bytes(space);
  }
  return bytes;
}

TEST_CASE("a remedy that offloads fits into what the ranks of each host have together",
          "[train][plan][offload]") {
  const int stages = GENERATE(1, 2);
  std::vector<std::string> overrides = kOnGpus;
  overrides.push_back("pipeline.stages=" + std::to_string(stages));
  const int world = 4;
  const ConfigWith with = config_with("configs/gpt2-124m.json", overrides, world);
  const Config on_host = with({kStatesToHost}).config;
  const Config on_disk =
      with({kStatesToDisk, "zero_optimization.offload_optimizer.nvme_path=/var/tmp"}).config;
  const std::int64_t host = 3 * kMiB + kept_by(on_host, world, 0, 3, Space::kHost);
  const std::int64_t small_host = kMiB + kept_by(on_host, world, 3, 4, Space::kHost);
  const std::int64_t disk = kept_by(on_disk, world, 0, 3, Space::kDisk);
  const auto fit_on = [&](std::optional<std::int64_t> memory, std::optional<std::int64_t> of_disk,
                          std::optional<std::int64_t> small_memory) {
    return examine_fit(about_gpus(with, world,
                                  {{.ranks = 3, .memory_bytes = memory, .disk_bytes = of_disk},
                                   {.ranks = 1, .memory_bytes = small_memory}}));
  };
  const MemoryFit unknown = fit_on({}, {}, {});
  CHECK_FALSE(unknown.fits);
  CHECK(unknown.host_bytes == 3 * kMiB);
  const Remedy* to_host = remedy_with(unknown, kStatesToHost);
  REQUIRE(to_host != nullptr);
  CHECK(to_host->host_bytes == host);
  CHECK(to_host->host_unchecked);
  CHECK_FALSE(to_host->disk_unchecked);

  const MemoryFit enough = fit_on(host, 0, small_host);
  to_host = remedy_with(enough, kStatesToHost);
  REQUIRE(to_host != nullptr);
  CHECK_FALSE(to_host->host_unchecked);

  for (const MemoryFit& found :
       {fit_on(host - 1, disk, small_host), fit_on(host, disk, small_host - 1)}) {
    CHECK(remedy_with(found, kStatesToHost) == nullptr);
    const Remedy* const to_disk = remedy_with(found, kStatesToDisk);
    REQUIRE(to_disk != nullptr);
    CHECK(to_disk->disk_bytes == disk);
    CHECK(to_disk->disk_unchecked);  // of the other host
  }
  // Layouts in which other ranks share a host may need less of it.
  for (const Remedy& remedy : fit_on(host - 1, disk - 1, small_host).remedies) {
    CHECK(remedy.host_bytes < host);
    CHECK(remedy.disk_bytes < disk);
  }
  const MemoryFit neither = fit_on(host - 1, 0, small_host);
  CHECK(remedy_with(neither, kStatesToHost) == nullptr);
  CHECK(remedy_with(neither, kStatesToDisk) == nullptr);
}

TEST_CASE("a run whose hosts are too small does not fit, and goes to a disk that is not",
          "[train][plan][offload]") {
  std::vector<std::string> overrides = kOnGpus;
  overrides.push_back(kStatesToHost);
  const int world = 2;
  const ConfigWith with = config_with("configs/gpt2-124m.json", overrides, world);
  const std::int64_t host = 2 * kMiB + kept_by(with({}).config, world, 0, world, Space::kHost);
  const auto fit_on = [&](std::int64_t memory) {
    return examine_fit(about_gpus(
        with, world,
        {{.ranks = world, .memory_bytes = memory, .disk_bytes = std::int64_t{1} << 40}}));
  };
  CHECK(fit_on(host).fits);
  const MemoryFit found = fit_on(host - 10);
  CHECK_FALSE(found.fits);
  CHECK(found.host_bytes_lacking == 10);
  CHECK(found.disk_bytes_lacking == 0);
  const Remedy* const to_disk = remedy_with(found, kStatesToDisk);
  REQUIRE(to_disk != nullptr);
  CHECK_FALSE(to_disk->disk_unchecked);
}

TEST_CASE("a micro-batch's inputs that the host's memory keeps limit it",
          "[train][plan][recompute]") {
  std::vector<std::string> overrides = kOnGpus;
  overrides[1] = "train_batch_size=512";
  overrides.emplace_back("activation_checkpointing.cpu_checkpointing=true");
  const ConfigWith with = config_with("configs/gpt2-124m.json", overrides, 2);
  FitQuestion question = about_gpus(with, 2, {});
  question.limit.bytes *= 4;
  const std::int64_t by_device = examine_fit(question).largest_micro_batch;
  const std::int64_t of_one = kept_by(with({}).config, 2, 0, 1, Space::kHost);
  question.hosts = {{.ranks = 2, .memory_bytes = 2 * (kMiB + 4 * of_one)}};
  const MemoryFit found = examine_fit(question);
  CHECK(by_device > 4);
  CHECK(found.largest_micro_batch == 4);
  CHECK(found.largest_of_this_batch == 4);
}

TEST_CASE("where nothing fits there is no remedy", "[train][plan]") {
  const ConfigWith with = config_with("configs/gpt2-124m.json", {}, 2);
  const MemoryFit found = fit(with, 2, kOverhead + kMiB);
  CHECK_FALSE(found.fits);
  CHECK(found.remedies.empty());
}

TEST_CASE("the largest micro-batch fits and one more sequence does not", "[train][plan]") {
  const int world = 4;
  const ConfigWith with = config_with("configs/gpt2-124m.json", {"train_batch_size=480"}, world);
  const std::int64_t now = held(with, {}, world);
  const std::int64_t limit = 3 * now;
  const MemoryFit found = fit(with, world, limit);
  REQUIRE(found.fits);
  CHECK(found.remedies.empty());
  const std::string accumulation =
      "gradient_accumulation_steps=" +
      std::to_string(*with({}).config.batch.gradient_accumulation_steps);
  const auto with_micro = [&](std::int64_t micro) {
    return held(with,
                {"train_batch_size=auto", accumulation,
                 "train_micro_batch_size_per_gpu=" + std::to_string(micro)},
                world);
  };
  CHECK(with_micro(found.largest_micro_batch) <= limit);
  CHECK(with_micro(found.largest_micro_batch + 1) > limit);
  CHECK(480 / world % found.largest_of_this_batch == 0);
  CHECK(found.largest_of_this_batch <= found.largest_micro_batch);
}

/// With micro-batches as the case gives them.
struct LongSequences {
  std::vector<std::string> layout;
  int world;
  std::int64_t step;  ///< that lengths are multiples of, by hand
};

TEST_CASE("the longest sequence fits and the next that the layout can have does not",
          "[train][plan][context]") {
  const auto given = GENERATE(
      LongSequences{{}, 1, 1}, LongSequences{{"context_parallel.size=4"}, 4, 8},
      LongSequences{{"context_parallel.size=4", "context_parallel.order=contiguous"}, 4, 4},
      LongSequences{{"context_parallel.size=4", "context_parallel.kind=ulysses"}, 4, 4},
      LongSequences{{"context_parallel.size=4", "context_parallel.kind=usp",
                     "context_parallel.ulysses_size=2"},
                    4,
                    8},
      // Micro-batches of one, whose tokens on a rank are shared by two.
      LongSequences{{"tensor_parallel.size=2", "tensor_parallel.sequence_parallel=true"}, 2, 2},
      LongSequences{{"context_parallel.size=2", "context_parallel.order=contiguous",
                     "tensor_parallel.size=2", "tensor_parallel.sequence_parallel=true"},
                    4,
                    4});
  std::vector<std::string> overrides = {
      "data.sequence_length=480", "train_micro_batch_size_per_gpu=1", "train_batch_size=4",
      "model.max_position_embeddings=1048576", "activation_checkpointing.granularity=full"};
  overrides.insert(overrides.end(), given.layout.begin(), given.layout.end());
  const ConfigWith with = config_with("configs/llama-100m.json", overrides, given.world);
  const auto length = [](std::int64_t tokens) {
    return std::vector<std::string>{"data.sequence_length=" + std::to_string(tokens)};
  };
  const std::int64_t now = held(with, {}, given.world);
  CAPTURE(given.layout, now);
  // More than the run takes, and less.
  for (const std::int64_t limit : {now + 37 * kMiB, now - kMiB / 4}) {
    const MemoryFit found = fit(with, given.world, limit);
    CAPTURE(limit, found.longest_sequence);
    REQUIRE(found.longest_sequence > 0);
    CHECK((found.longest_sequence > 480) == found.fits);
    CHECK(found.longest_sequence % given.step == 0);
    CHECK_FALSE(found.config_allows_no_longer);
    CHECK(held(with, length(found.longest_sequence), given.world) <= limit);
    CHECK(held(with, length(found.longest_sequence + given.step), given.world) > limit);
  }
}

TEST_CASE("no sequence is longer than the model has positions", "[train][plan]") {
  const ConfigWith with = config_with("configs/gpt2-124m.json", {"data.sequence_length=500"}, 1);
  const MemoryFit found = fit(with, 1, held(with, {}, 1) * 100);
  CHECK(found.longest_sequence == 1024);
  CHECK(found.config_allows_no_longer);
}

TEST_CASE("where one token is too many, no sequence fits", "[train][plan]") {
  const ConfigWith with = config_with("configs/gpt2-124m.json", {}, 1);
  const MemoryFit found = fit(with, 1, kOverhead + kMiB);
  CHECK(found.longest_sequence == 0);
  CHECK_FALSE(found.config_allows_no_longer);
}

TEST_CASE("a limit is an amount or an accelerator", "[train]") {
  CHECK(parse_memory_limit("80GiB").bytes == std::int64_t{80} << 30);
  CHECK(parse_memory_limit("80 gb").bytes == 80'000'000'000);
  CHECK(parse_memory_limit("1.5MiB").bytes == 3 * kMiB / 2);
  CHECK(parse_memory_limit("123456").bytes == 123'456);
  CHECK(parse_memory_limit("h100").name == "H100-80GB");
  CHECK(parse_memory_limit("A100 80GB").bytes == 81'251 * kMiB);
  REQUIRE(parse_memory_limit("H200").accelerator.has_value());
  CHECK_THROWS_WITH(parse_memory_limit("a100"), Catch::Contains("A100-40GB or A100-80GB"));
  for (const char* const text : {"", "80XB", "-5GiB", "0", "nan", "inf", "1e300GB", "A1000"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_memory_limit(text), ConfigError);
  }
}

TEST_CASE("an amount is a number of bytes", "[train]") {
  CHECK(parse_amount("2TB") == 2'000'000'000'000);
  CHECK(parse_amount("512 GiB") == std::int64_t{512} << 30);
  CHECK_THROWS_WITH(parse_amount("H100"),
                    Catch::Contains("\"H100\" is not an amount of memory: expected 80GiB"));
}

TEST_CASE("traffic that stays within hosts is cheaper", "[train][plan]") {
  const int world = 16;
  const ConfigWith with = config_with("configs/llama-7b-tp8.json",
                                      {"tensor_parallel.size=1", "zero_optimization.stage=3",
                                       "zero_optimization.overlap_comm=false"},
                                      world);
  const auto price = [&](const std::vector<std::string>& overrides) {
    const Config config = with(overrides).config;
    return price_step(config, make_run_plan(config, world, 0), {.ranks_per_host = 8});
  };
  const double plain = price({});
  const double second_copy = price({"zero_optimization.zero_hpz_partition_size=8"});
  const double groups = price({"zero_optimization.mics_shard_size=8"});
  CHECK(groups < second_copy);
  CHECK(second_copy < plain);
  const double weights = price({"zero_optimization.zero_hpz_partition_size=8",
                                "zero_optimization.zero_quantized_weights=true"});
  const double all = price({"zero_optimization.zero_hpz_partition_size=8",
                            "zero_optimization.zero_quantized_weights=true",
                            "zero_optimization.zero_quantized_gradients=true"});
  CHECK(weights < second_copy);
  CHECK(all < weights);
  // The same group of 16 is no cheaper than itself.
  CHECK(price({"zero_optimization.mics_shard_size=16"}) == plain);
}

TEST_CASE("feed-forwards in tiles are a remedy where these have most activations",
          "[train][plan][recompute]") {
  const ConfigWith with =
      config_with("configs/llama-100m.json",
                  {"train_micro_batch_size_per_gpu=1", "train_batch_size=1", "training.device=cpu",
                   "data.sequence_length=16384", "model.max_position_embeddings=16384",
                   "activation_checkpointing.granularity=selective"},
                  1);
  const std::int64_t needs = fit(with, 1, 65536 * kMiB).bytes;
  const std::vector<Remedy> remedies = fit(with, 1, needs * 9 / 10).remedies;
  const auto tiles = std::find_if(remedies.begin(), remedies.end(), [](const Remedy& remedy) {
    return remedy.overrides == std::vector<std::string>{"training.mlp_tile_tokens=1024"};
  });
  REQUIRE(tiles != remedies.end());
  CHECK(tiles->relative_step_time > 1.0);
  CHECK(tiles->relative_step_time < 1.15);
  CHECK(held(with, tiles->overrides, 1) == tiles->bytes);
}

TEST_CASE("inputs of blocks that fit elsewhere are a remedy on GPUs", "[train][plan][recompute]") {
  const auto remedies_of = [](const char* device) {
    const ConfigWith with =
        config_with("configs/gpt2-124m.json",
                    {"train_micro_batch_size_per_gpu=64", "train_batch_size=64",
                     "gradient_accumulation_steps=1", "activation_checkpointing.granularity=full",
                     "training.mlp_tile_tokens=1024", std::string("training.device=") + device},
                    1);
    const std::int64_t needs = fit(with, 1, 65536 * kMiB).bytes;
    // Twelve blocks' inputs are 1152 MiB in 16 bits, of which two stay on the device.
    std::vector<std::string> all;
    for (const Remedy& remedy : fit(with, 1, needs - 600 * kMiB).remedies) {
      all.insert(all.end(), remedy.overrides.begin(), remedy.overrides.end());
    }
    return all;
  };
  const std::string key = "activation_checkpointing.cpu_checkpointing=true";
  CHECK_THAT(remedies_of("cuda"), Catch::Matchers::VectorContains(key));
  CHECK_THAT(remedies_of("cpu"), !Catch::Matchers::VectorContains(key));
}

TEST_CASE("prices follow what a change does", "[train]") {
  const int world = 8;
  const ConfigWith with = config_with("configs/llama-7b-tp8.json", {"tensor_parallel.size=1"}, 8);
  const auto price = [&](const std::vector<std::string>& overrides) {
    const Config config = with(overrides).config;
    return price_step(config, make_run_plan(config, world, 0), {.ranks_per_host = 8});
  };
  const double now = price({});
  const double selective = price({"activation_checkpointing.granularity=selective"});
  const double full = price({"activation_checkpointing.granularity=full"});
  CHECK(now < selective);
  CHECK(selective < full);
  CHECK(full < 1.34 * now);  // a third more arithmetic, and no more
  const std::string both =
      R"(activation_checkpointing={"granularity": "full", "cpu_checkpointing": true})";
  CHECK(full < price({both, "training.device=cuda"}));
}

}  // namespace
}  // namespace dstrain::test
