// `dstrain launch` of a run on GPUs, before a rank starts: what hosts say of their GPUs, and what
// is wrong with them. The program is the whole of dstrain, linked with the emulated GPUs.
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/cluster/fleet_run.h"
#include "tests/cluster/skip.h"
#include "tests/harness/local_agents.h"
#include "tests/harness/program.h"

namespace dstrain {
namespace {

using Catch::Contains;
using testing::Program;

constexpr std::chrono::seconds kPatience{60};
const std::string kOnGpus = "training.device=cuda";

/// As on a machine with so many GPUs of 1 GiB.
Program launch_with(int gpus, std::vector<std::string> arguments) {
  setenv("DSTRAIN_EMULATED_GPUS", std::to_string(gpus).c_str(), 1);
  std::vector<std::string> argv = {EMULATED_DSTRAIN, "launch"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return Program(argv);
}

TEST_CASE("--check tells this machine's GPUs, and who would share one", "[launch][cuda]") {
  Program each =
      launch_with(2, {"--num_gpus", "2", "--check", "configs/quickstart.json", "--set", kOnGpus});
  CHECK(each.wait(kPatience) == 0);
  CHECK_THAT(each.out(), Contains("2 × emulated GPU, 1.00 GiB, driver "));
  CHECK_THAT(each.err(), !Contains("share"));

  Program both =
      launch_with(1, {"--num_gpus", "2", "--check", "configs/quickstart.json", "--set", kOnGpus});
  CHECK(both.wait(kPatience) == 0);
  CHECK_THAT(both.err(), Contains("2 ranks share 1 GPU: they take turns"));
}

TEST_CASE("a GPU that is too small for the plan is refused before a rank starts",
          "[launch][cuda]") {
  for (const bool is_check : {false, true}) {
    std::vector<std::string> arguments = {"--num_gpus", "2", "configs/gpt2-124m.json", "--set",
                                          kOnGpus};
    if (is_check) arguments.emplace_back("--check");
    Program program = launch_with(2, arguments);
    CHECK(program.wait(kPatience) == 3);
    CHECK_THAT(program.err(), Contains("cuda:0 of host ") &&
                                  Contains(", emulated GPU, has 1.00 GiB of memory, and its rank "
                                           "will take ") &&
                                  Contains("--no-memory-check"));
  }
}

TEST_CASE("a machine without a GPU is refused in a sentence, and its plan can be looked at",
          "[launch][cuda]") {
  Program run = launch_with(0, {"configs/quickstart.json", "--set", kOnGpus});
  CHECK(run.wait(kPatience) == 3);
  CHECK_THAT(run.last_line(),
             Contains("training.device is \"cuda\", but the CUDA driver sees no device") &&
                 Contains("--set training.device=cpu"));
  Program plan =
      launch_with(0, {"configs/quickstart.json", "--set", kOnGpus, "--check", "--offline"});
  CHECK(plan.wait(kPatience) == 0);
}

TEST_CASE("an agent answers for its host's GPUs", "[launch][cuda]") {
  setenv("DSTRAIN_EMULATED_GPUS", "2", 1);
  asio::io_context loop;
  testing::LocalAgent agent(loop, "w1", {}, {EMULATED_DSTRAIN, "agent"});
  REQUIRE_FALSE(agent.failure());
  std::optional<launcher::HostAnswer> answer;
  agent.host().ask({.kind = launcher::QuestionKind::kGpus},
                   [&](launcher::HostAnswer said) { answer = std::move(said); });
  REQUIRE(testing::run_until(loop, [&] { return answer.has_value(); }));
  CHECK(answer->error.empty());
  REQUIRE(answer->gpus.size() == 2);
  CHECK(answer->gpus[1].model == "emulated GPU");
  CHECK(answer->gpus[1].total_bytes == std::int64_t{1} << 30);
  CHECK_FALSE(answer->driver.empty());
}

TEST_CASE("--check tells the GPUs of every host", "[launch][cuda][cluster][slow]") {
  if (testing::no_cluster_here()) return;
  setenv("DSTRAIN_BINARY", EMULATED_DSTRAIN, 1);
  testing::FleetRun run(2, 2);  // a host of the cluster has one
  const auto text = run.launch({"--check", "--set", kOnGpus});
  CHECK(text->wait(kPatience) == 0);
  CHECK_THAT(text->out(), Contains("1 × emulated GPU, 1.00 GiB, driver "));
  CHECK_THAT(text->err(), Contains("w0: 2 ranks share 1 GPU: they take turns") &&
                              Contains("w1: 2 ranks share 1 GPU"));
  const auto json = run.launch({"--check", "--json", "--set", kOnGpus});
  CHECK(json->wait(kPatience) == 0);
  const auto host = nlohmann::json::parse(json->out())["hosts"][1];
  REQUIRE(host["gpus"].size() == 1);
  CHECK(host["gpus"][0]["model"] == "emulated GPU");
  CHECK(host["gpus"][0]["memory_bytes"] == 1 << 30);
  CHECK_FALSE(host["driver"].get<std::string>().empty());
}

}  // namespace
}  // namespace dstrain
