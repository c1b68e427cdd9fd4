// `dstrain estimate-memory` as a user meets it.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
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
using nlohmann::json;
using testing::Program;

constexpr std::chrono::milliseconds kPatience{60'000};

Program estimate(const std::vector<std::string>& arguments) {
  std::vector<std::string> argv = {testing::dstrain_binary(), "estimate-memory"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return Program(argv);
}

json estimate_json(std::vector<std::string> arguments, int expected_code = 0) {
  arguments.emplace_back("--json");
  Program program = estimate(arguments);
  const std::optional<int> code = program.wait(kPatience);
  INFO(program.err());
  REQUIRE(code == expected_code);
  return json::parse(program.out());
}

double seconds_of_children() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// First, so that the largest child so far is this one. It takes half a second to a second and a
// half, by processor; work for each rank of 3072 rather than for each stage would take minutes.
TEST_CASE("a trillion parameters on 3072 ranks take seconds and 200 MiB", "[cmd][estimate]") {
  if (testing::no_dstrain_here()) return;
  const double before = seconds_of_children();
  const json found = estimate_json({"configs/gpt-1t-tp8-pp64.json", "--hostfile",
                                    "hostfiles/384-hosts.example", "--device-memory", "80GiB"});
  CHECK(found["ranks"] == 3072);
  CHECK(found["stages"].size() == 64);
  CHECK(found["fit"]["fits"] == true);
#if defined(NDEBUG) && !defined(DSTRAIN_SANITIZED)
  CHECK(seconds_of_children() - before < 5.0);
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  CHECK(usage.ru_maxrss < 200 * 1024);  // KiB
#else
  (void)before;
#endif
}

TEST_CASE("components, planned bytes and what is beside them add up", "[cmd][estimate]") {
  if (testing::no_dstrain_here()) return;
  const json found = estimate_json({"configs/gpt2-124m.json", "--num_gpus", "4", "--zero", "2"});
  const json& stage = found["stages"][0]["bytes"];
  std::int64_t sum = 0;
  for (const auto& [component, bytes] : stage.items()) {
    sum += component == "total" ? 0 : bytes.get<std::int64_t>();
  }
  CHECK(stage["total"] == sum);
  CHECK(found["memory"]["planned"] == sum);
  std::int64_t beside = 0;
  for (const json& part : found["memory"]["overhead"]) {
    beside += part["bytes"].get<std::int64_t>();
    CHECK_FALSE(part["source"].get<std::string>().empty());
  }
  CHECK(found["memory"]["bytes"] == sum + beside);
  CHECK(found["memory"]["host_bytes"] == 4 * (sum + beside));
  CHECK(found["peak_in_use"]["bytes"]["total"] <= sum);

  Program text = estimate({"configs/gpt2-124m.json", "--num_gpus", "4", "--zero", "2"});
  REQUIRE(text.wait(kPatience) == 0);
  CHECK_THAT(text.out(), Contains("4 = 1 pipeline × 4 data × 1 tensor; ZeRO stage 2") &&
                             Contains("124,439,808") && Contains("optimizer states") &&
                             Contains("activations: attention") && Contains("logits") &&
                             Contains("In use during a step on rank 0") &&
                             Contains("highest after"));
}

TEST_CASE("a run that does not fit gets changes that make it fit, and they do", "[cmd][estimate]") {
  if (testing::no_dstrain_here()) return;
  const std::vector<std::string> run = {"configs/gpt2-xl-zero2.json",
                                        "--num_gpus",
                                        "8",
                                        "--zero",
                                        "0",
                                        "--device-memory",
                                        "V100-32GB"};
  const json found = estimate_json(run, 3);
  CHECK(found["device"] == "cuda");
  CHECK(found["fit"]["fits"] == false);
  const json& remedies = found["fit"]["remedies"];
  REQUIRE_FALSE(remedies.empty());
  for (const json& remedy : remedies) {
    CAPTURE(remedy.dump());
    std::vector<std::string> changed = {"configs/gpt2-xl-zero2.json", "--num_gpus", "8",
                                        "--device-memory", "V100-32GB"};
    bool says_zero = false;
    for (const json& set : remedy["set"]) {
      changed.insert(changed.end(), {"--set", set.get<std::string>()});
      says_zero = says_zero || set.get<std::string>().starts_with("zero_optimization.stage=");
    }
    if (!says_zero) changed.insert(changed.end(), {"--zero", "0"});
    const json better = estimate_json(changed);
    CHECK(better["fit"]["fits"] == true);
    CHECK(better["memory"]["bytes"] == remedy["bytes"]);
  }
  Program text = estimate(run);
  CHECK(text.wait(kPatience) == 3);
  CHECK_THAT(text.out(), Contains("Does not fit into V100-32GB") && Contains("cheapest first") &&
                             Contains("--set zero_optimization.stage="));
}

TEST_CASE("what is offloaded must fit into the memory and on the disk of a host",
          "[cmd][estimate][offload]") {
  if (testing::no_dstrain_here()) return;
  const std::vector<std::string> run = {"configs/gpt2-xl-zero2.json",
                                        "--num_gpus",
                                        "1",
                                        "--micro-batch",
                                        "1",
                                        "--device-memory",
                                        "24GiB"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), run.begin(), run.end());
    return more;
  };
  const auto proposes = [](const json& found, const std::string& set) {
    const json& remedies = found["fit"]["remedies"];
    return std::any_of(remedies.begin(), remedies.end(), [&](const json& remedy) {
      const json& all = remedy["set"];
      return std::find(all.begin(), all.end(), set) != all.end();
    });
  };
  const std::string to_host = "zero_optimization.offload_optimizer.device=cpu";
  const std::string to_disk = "zero_optimization.offload_optimizer.device=nvme";
  const json unknown = estimate_json(run, 3);
  CHECK(proposes(unknown, to_host));
  Program text = estimate(run);
  CHECK(text.wait(kPatience) == 3);
  CHECK_THAT(text.out(), Contains("of a host's memory (not checked: not known here)"));

  // 1.6 billion parameters of 12 bytes.
  const std::vector<std::string> large = with({"--host-memory", "64GiB", "--host-disk", "1TB"});
  CHECK(proposes(estimate_json(large, 3), to_host));
  Program known = estimate(large);
  CHECK(known.wait(kPatience) == 3);
  CHECK_THAT(known.out(), Contains("of a host's memory") && !Contains("not checked"));
  const json small = estimate_json(with({"--host-memory", "12GiB", "--host-disk", "1TB"}), 3);
  CHECK_FALSE(proposes(small, to_host));
  CHECK(proposes(small, to_disk));
  const json neither = estimate_json(with({"--host-memory", "12GiB", "--host-disk", "8GB"}), 3);
  CHECK_FALSE(proposes(neither, to_host));
  CHECK_FALSE(proposes(neither, to_disk));

  Program offloads = estimate(with({"--host-memory", "12GiB", "--set", to_host}));
  CHECK(offloads.wait(kPatience) == 3);
  CHECK_THAT(offloads.out(), Contains("Does not fit into a host's memory: "));
  Program wrong = estimate(with({"--host-memory", "H100"}));
  CHECK(wrong.wait(kPatience) == 2);
  CHECK_THAT(wrong.err(), Contains("\"H100\" is not an amount of memory: expected 80GiB"));
  Program alone = estimate({"configs/gpt2-xl-zero2.json", "--host-disk", "1TB"});
  CHECK(alone.wait(kPatience) == 2);
  CHECK_THAT(alone.err(), Contains("--device-memory"));
}

TEST_CASE("the matrix has a row for each stage and recomputation", "[cmd][estimate]") {
  if (testing::no_dstrain_here()) return;
  const std::vector<std::string> run = {"configs/gpt2-124m.json", "--num_gpus", "4", "--matrix"};
  Program text = estimate(run);
  CHECK(text.wait(kPatience) == 0);
  const json rows = estimate_json(run);
  REQUIRE(rows.size() == 12);
  std::vector<std::string> csv = run;
  csv.emplace_back("--csv");
  Program program = estimate(csv);
  REQUIRE(program.wait(kPatience) == 0);
  const std::string lines = program.out();
  CHECK(std::count(lines.begin(), lines.end(), '\n') == 13);
}

TEST_CASE("the picture is written", "[cmd][estimate]") {
  if (testing::no_dstrain_here()) return;
  const std::filesystem::path file = std::filesystem::temp_directory_path() / "dstrain-step.svg";
  std::filesystem::remove(file);
  Program program = estimate({"configs/gpt2-124m.json", "--svg", file.string()});
  REQUIRE(program.wait(kPatience) == 0);
  std::ifstream in(file);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  CHECK(text.starts_with("<svg"));
  CHECK_THAT(text, Contains("</svg>"));
  std::filesystem::remove(file);
  CHECK(estimate({"configs/gpt2-124m.json", "--svg", "/nowhere/step.svg"}).wait(kPatience) != 0);
}

TEST_CASE("other tools' figures are printed as they print them", "[cmd][estimate]") {
  if (testing::no_dstrain_here()) return;
  Program deepspeed = estimate(
      {"configs/gpt2-124m.json", "--num_nodes", "2", "--num_gpus", "8", "--deepspeed-compat"});
  REQUIRE(deepspeed.wait(kPatience) == 0);
  CHECK_THAT(deepspeed.out(),
             Contains("SW: Model with 124M total params") && Contains("2 nodes, 8 GPUs per node"));
  Program huggingface = estimate({"configs/gpt2-124m.json", "--huggingface-compat"});
  REQUIRE(huggingface.wait(kPatience) == 0);
  CHECK_THAT(huggingface.out(), Contains("float32") && Contains("int4"));
  Program published = estimate({"configs/gpt2-124m.json", "--published"});
  REQUIRE(published.wait(kPatience) == 0);
  CHECK_THAT(published.out(), Contains("ZeRO"));
}

TEST_CASE("a layout that cannot be names its rule and the nearest that can", "[cmd][estimate]") {
  if (testing::no_dstrain_here()) return;
  Program program =
      estimate({"configs/gpt2-124m.json", "--num_gpus", "8", "--tensor-parallel", "8"});
  CHECK(program.wait(kPatience) == 2);
  CHECK_THAT(program.last_line(),
             Contains("8 does not divide model.n_head 12") &&
                 Contains("nearest layout that would do: --set tensor_parallel.size=4"));
  CHECK(estimate({"configs/gpt2-124m.json", "--device-memory", "H1000"}).wait(kPatience) == 2);
  CHECK(estimate({"configs/gpt2-124m.json", "--csv"}).wait(kPatience) == 2);
}

}  // namespace
}  // namespace dstrain
