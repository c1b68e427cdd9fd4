// A run of dstrain takes the memory that it planned: the arena and the library overhead are
// compared with what the run and the kernel measure. scripts/check_memory does the same for GPT-2
// 124M.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "tests/harness/program.h"
#include "tests/harness/skip.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using testing::Program;

constexpr std::chrono::milliseconds kPatience{60'000};
constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kTolerance = 64 * kMiB;

/// One layer of GPT-2 with the whole vocabulary: 700 MiB of parameters, gradients
/// and moments, whose largest tensor is 147 MiB, a few seconds of work.
class Run {
 public:
  Run() {
    std::ofstream data(path("train.bin"), std::ios::binary);
    for (std::uint32_t i = 0; i < 4096; ++i) {
      const auto token = static_cast<std::uint16_t>(i * 7919 % 50257);
      data.write(reinterpret_cast<const char*>(&token), sizeof token);
    }
    std::ofstream(path("config.json")) << R"({
  "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
  "model": {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 64, "n_embd": 768,
            "n_layer": 1, "n_head": 12},
  "data": {"train": ")" << path("train.bin")
                                       << R"(", "validation": ")" << path("train.bin")
                                       << R"(", "sequence_length": 64},
  "training": {"steps": 3, "eval_interval": 1, "eval_batches": 1, "device": "cpu",
               "output_dir": ")" << path("run")
                                       << R"("},
  "checkpoint": {"interval": 2, "keep": 1, "resume": "never"}
})";
  }

  [[nodiscard]] std::string path(const std::string& name) const {
    return (folder_.path() / name).string();
  }
  /// memory_bytes of the last step: each member's values by rank.
  [[nodiscard]] nlohmann::json memory() const {
    std::ifstream metrics(path("run/ranks.jsonl"));
    std::string last;
    for (std::string line; std::getline(metrics, line);) {
      last = line;
    }
    return nlohmann::json::parse(last).at("memory_bytes");
  }

 private:
  testing::TemporaryFolder folder_;
};

/// The most that the kernel saw a child of this process hold, mapped files included.
std::int64_t resident_peak_of_children() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

// [slow]: under AddressSanitizer a process holds something else.
TEST_CASE("a run takes what it planned", "[cmd][memory][slow]") {
  if (testing::no_dstrain_here()) return;
  const std::string precision = GENERATE("fp32", "bf16");
  CAPTURE(precision);
  const Run run;
  Program program({testing::dstrain_binary(), "train", run.path("config.json"),
                   "--set=bf16.enabled=" + std::string(precision == "bf16" ? "true" : "false")});
  const auto ended = program.wait(kPatience);
  CAPTURE(program.err());
  REQUIRE(ended == 0);
  const nlohmann::json memory = run.memory();
  REQUIRE(memory["peak"].size() == 1);
  const auto planned = memory["planned"][0].get<std::int64_t>();
  const auto overhead = memory["overhead"][0].get<std::int64_t>();
  const auto peak = memory["peak"][0].get<std::int64_t>();
  CAPTURE(planned, overhead, peak);
  REQUIRE(planned > 500 * kMiB);
  CHECK(std::abs(peak - planned - overhead) < kTolerance);
  CHECK(memory["measured"][0].get<std::int64_t>() <= peak);
  CHECK_THAT(program.err(),
             Contains("memory      planned 7") && Contains("overhead, measured peak"));

  // Between two looks a run could hold more: the kernel would have seen it. Its figure counts the
  // pages of the program and its libraries too.
  constexpr std::int64_t kFiles = 32 * kMiB;
  const std::int64_t by_kernel = resident_peak_of_children();
  CHECK(by_kernel >= peak);
  CHECK(by_kernel < planned + overhead + kTolerance + kFiles);
}

TEST_CASE("ranks that talk take what they planned", "[cmd][memory][slow]") {
  if (testing::no_dstrain_here()) return;
  const Run run;
  Program program({testing::dstrain_binary(), "launch", "--num_gpus", "2", run.path("config.json"),
                   "--set=zero_optimization.stage=1"});
  const auto ended = program.wait(kPatience);
  CAPTURE(program.err());
  REQUIRE(ended == 0);
  const nlohmann::json memory = run.memory();
  REQUIRE(memory["peak"].size() == 2);
  for (const std::size_t rank : {0, 1}) {
    CAPTURE(rank, memory.dump());
    const auto bytes = [&](const char* member) { return memory[member][rank].get<std::int64_t>(); };
    CHECK(bytes("planned") > 400 * kMiB);
    CHECK(std::abs(bytes("peak") - bytes("planned") - bytes("overhead")) < kTolerance);
    CHECK(bytes("resident_peak") >= bytes("peak"));
  }
  CHECK_THAT(program.err(), Contains("which holds most"));
}

}  // namespace
}  // namespace dstrain
