// `dstrain launch --check` as a user meets it: for machines that are not there, on this one.
#include <chrono>
#include <cstdlib>
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

constexpr std::chrono::milliseconds kPatience{20'000};

/// The processor time of ended children, which a busy machine does not change.
double seconds_of_children() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Program launch(std::vector<std::string> arguments) {
  std::vector<std::string> argv = {testing::dstrain_binary(), "launch"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return Program(argv);
}

// About a second; work for each rank rather than for each stage would take minutes.
TEST_CASE("a trillion parameters on 3072 ranks are checked in seconds, without the hosts",
          "[cmd][launch]") {
  if (testing::no_dstrain_here()) return;
  [[maybe_unused]] const double before = seconds_of_children();
  Program program = launch({"--hostfile", "hostfiles/384-hosts.example", "--check", "--offline",
                            "configs/gpt-1t-tp8-pp64.json"});
  REQUIRE(program.wait(kPatience) == 0);
#if defined(NDEBUG) && !defined(DSTRAIN_SANITIZED)
  CHECK(seconds_of_children() - before < 5.0);
#endif
  CHECK_THAT(program.out(), Contains("3072 = 64 pipeline × 6 data × 8 tensor, sequence parallel; "
                                     "ZeRO stage 1") &&
                                Contains("1,008,038,758,400") && Contains("6,291,456 tokens") &&
                                Contains("1f1b; ranks idle 11.0 %") && Contains("126-127"));
  CHECK_THAT(program.err(), Contains("none of them was contacted"));
}

TEST_CASE("what a run would keep on a disk is told, and a folder that cannot hold it",
          "[cmd][launch][offload]") {
  if (testing::no_dstrain_here()) return;
  const std::string states = "--set=zero_optimization.offload_optimizer.";
  Program planned = launch({"--num_gpus", "2", "--check", "--offline", "--json",
                            states + "device=nvme", states + "nvme_path=/scratch",
                            "--set=zero_optimization.stage=1", "configs/gpt2-124m.json"});
  REQUIRE(planned.wait(kPatience) == 0);
  const auto json = nlohmann::json::parse(planned.out());
  // Both ranks together: an f32 master and two moments of every parameter, in slices of 2.
  const double bytes = json["memory"]["disk_bytes"].get<double>();
  CHECK(bytes == Approx(12.0 * 124'439'808).epsilon(1e-3));
  Program checked = launch({"--num_gpus", "1", "--check", states + "device=nvme",
                            states + "nvme_path=/no/such", "configs/quickstart.json"});
  REQUIRE(checked.wait(kPatience) == 0);
  CHECK_THAT(checked.err(), Contains("a start would be refused") &&
                                Contains("/no/such is not there on this host"));
}

TEST_CASE("the check tells how a mixture's experts are kept busy", "[cmd][launch][experts]") {
  if (testing::no_dstrain_here()) return;
  const auto checked = [](std::vector<std::string> sets) {
    std::vector<std::string> arguments = {"--num_gpus", "1", "--check", "--offline"};
    for (const char* const key : {"model_type=mixtral", "num_local_experts=4",
                                  "num_experts_per_tok=2", "router_aux_loss_coef=0.02"}) {
      arguments.push_back(std::string("--set=model.") + key);
    }
    for (const std::string& set : sets) {
      arguments.push_back("--set=" + set);
    }
    arguments.emplace_back("configs/quickstart.json");
    Program program = launch(arguments);
    CHECK(program.wait(kPatience) == 0);
    return program.out();
  };
  CHECK_THAT(checked({}), Contains("experts     4 in a layer, 2 for each token; no balance loss, "
                                   "since model.output_router_logits is false\n"));
  CHECK_THAT(checked({"model.output_router_logits=true", "model.router_z_loss_coef=0.001",
                      "training.expert_capacity_factor=1.25"}),
             Contains("2 for each token; balance loss × 0.02; z loss × 0.001; tokens beyond 1.25 "
                      "times an even share are dropped\n"));
}

TEST_CASE("the check speaks JSON in bytes", "[cmd][launch]") {
  if (testing::no_dstrain_here()) return;
  Program program = launch({"--hostfile", "hostfiles/48-hosts.example", "--num_nodes", "8",
                            "--check", "--offline", "--json", "configs/llama-70b-tp8-pp8.json"});
  REQUIRE(program.wait(kPatience) == 0);
  const auto json = nlohmann::json::parse(program.out());
  CHECK(json["ranks"] == 64);
  CHECK(json["layout"]["data"] == 1);
  CHECK(json["parameters"] == 68'976'648'192);
  CHECK(json["schedule"]["order"] == "interleaved");
  REQUIRE(json["stages"].size() == 8);
  for (const auto& stage : json["stages"]) {
    std::int64_t sum = 0;
    for (const auto& [group, bytes] : stage["bytes"].items()) {
      sum += group == "total" ? 0 : bytes.get<std::int64_t>();
    }
    CHECK(stage["bytes"]["total"] == sum);
    CHECK(stage["blocks"].size() == 2);
  }
}

TEST_CASE("hosts that cannot be reached refuse the run and not the check", "[cmd][launch]") {
  if (testing::no_dstrain_here()) return;
  Program run = launch({"--hostfile", "hostfiles/48-hosts.example", "--num_nodes", "1",
                        "configs/llama-7b-tp8.json"});
  CHECK(run.wait(kPatience) == 3);
  CHECK_THAT(run.last_line(), Contains("1 of 1 hosts cannot take part"));
  CHECK_THAT(run.err(), Contains("node1  resolve"));
  Program check = launch({"--hostfile", "hostfiles/48-hosts.example", "--num_nodes", "4",
                          "--num_gpus", "4", "--check", "--offline", "configs/llama-7b-tp8.json"});
  CHECK(check.wait(kPatience) == 0);
  CHECK_THAT(check.err(), Contains("2 of 2 tensor-parallel groups span hosts"));
  CHECK(launch({"--json", "configs/llama-7b-tp8.json"}).wait(kPatience) == 2);
}

}  // namespace
}  // namespace dstrain
