// The launch lines that the literature prints for torchrun and DeepSpeed's launcher, with program
// and arguments replaced by a config: what each of them is understood as.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/failure/tiny_run.h"
#include "tests/harness/reserved_port.h"
#include "tests/harness/skip.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using testing::Program;
using testing::TinyRun;

constexpr std::chrono::seconds kPatience{60};

struct Answer {
  int code = -1;
  std::string out;
  std::string err;
};

/// A line as a shell takes it, from the folder of a small run with config.json in it.
Answer line(const TinyRun& run, const std::string& words, const std::string& variables = "") {
  const std::string dstrain = std::filesystem::absolute(testing::dstrain_binary());
  Program shell({"/bin/sh", "-c",
                 "cd '" + run.path(".") + "' && " + variables + " '" + dstrain + "' " + words});
  const auto code = shell.wait(kPatience);
  return {code.value_or(-1), shell.out(), shell.err()};
}

/// The ranks of a line, planned without contacting anybody.
int planned_ranks(const TinyRun& run, const std::string& words) {
  const Answer answer = line(run, words + " --check --offline --json");
  INFO(answer.err);
  REQUIRE(answer.code == 0);
  return nlohmann::json::parse(answer.out)["ranks"].get<int>();
}

void write_hostfile(const TinyRun& run) {
  std::ofstream(run.path("hostfile")) << "hostname1 slots=8\nhostname2 slots=8\n";
}

TEST_CASE("lines for one machine have its layout", "[cmd][peers]") {
  if (testing::no_dstrain_here()) return;
  const TinyRun run;
  CHECK(planned_ranks(run, "launch --num_gpus=1 config.json") == 1);
  CHECK(planned_ranks(run, "launch --nproc_per_node=2 --deepspeed config.json") == 2);
  CHECK(planned_ranks(run,
                      "launch --nproc-per-node 2 --deepspeed --deepspeed_config config.json") == 2);
  CHECK(planned_ranks(run, "launch --num_gpus=2 --deepspeed config.json") == 2);
  CHECK(planned_ranks(run, "launch --standalone --nnodes=1 --nproc_per_node=2 config.json") == 2);
}

TEST_CASE("lines for two machines have their layout, by SSH or started by hand on each",
          "[cmd][peers]") {
  if (testing::no_dstrain_here()) return;
  const TinyRun run;
  write_hostfile(run);
  for (const char* rank : {"0", "1"}) {
    const std::string by_hand = std::string("launch --nproc_per_node=8 --nnode=2 --node_rank=") +
                                rank + " --master_addr=hostname1 --master_port=9901 config.json";
    CHECK(planned_ranks(run, by_hand) == 16);
  }
  CHECK(planned_ranks(run,
                      "launch --num_gpus 8 --num_nodes 2 --hostfile hostfile --master_addr "
                      "hostname1 --master_port=9901 config.json") == 16);
  CHECK(planned_ranks(run, "launch --hostfile hostfile --include hostname2:1,3 config.json") == 2);
  CHECK(planned_ranks(run, "launch --nnodes 1:2 --hostfile hostfile config.json") == 16);
}

TEST_CASE("ranks that a line starts are those of its layout, at its master", "[cmd][peers]") {
  if (testing::no_dstrain_here()) return;
  const TinyRun run;
  const testing::ReservedPort reserved;
  const std::string port = std::to_string(reserved.number());
  const Answer answer =
      line(run, "launch --nproc_per_node=2 --master_addr=127.0.0.1 --master_port=" + port +
                    " --set training.steps=3 --deepspeed config.json");
  INFO(answer.err);
  CHECK(answer.code == 0);
  CHECK_THAT(answer.err, Contains("2 ranks") && Contains("finished at step 3"));
}

TEST_CASE("a line that evaluates alone tells the loss of the trained weights and writes nothing",
          "[cmd][peers]") {
  if (testing::no_dstrain_here()) return;
  const TinyRun run;
  const std::string data =
      " --set training.steps=8 --set zero_optimization.stage=3 "
      "--set data.validation=" +
      run.path("data/train") + " ";
  const auto loss_in = [](const std::string& text) {
    constexpr std::string_view kBefore = "validation loss ";
    const std::size_t at = text.rfind(kBefore);
    return at == std::string::npos ? "none" : text.substr(at + kBefore.size(), 6);
  };
  const std::string evaluate = "launch --num_gpus=2 --do_eval --deepspeed config.json" + data;
  const Answer untrained = line(run, evaluate);
  INFO(untrained.err);
  CHECK(untrained.code == 0);
  CHECK_THAT(untrained.err, Contains("evaluated at step 0, with untrained weights"));
  CHECK_FALSE(std::filesystem::exists(run.path("run/metrics.jsonl")));
  CHECK_FALSE(std::filesystem::exists(run.path("run/checkpoints")));

  const Answer trained = line(run, "launch --num_gpus=2 config.json" + data);
  REQUIRE(trained.code == 0);
  const std::string metrics = run.read("run/metrics.jsonl");
  const Answer evaluated = line(run, evaluate);
  INFO(evaluated.err);
  CHECK(evaluated.code == 0);
  CHECK_THAT(evaluated.err, Contains("evaluated at step 8, validation loss "));
  CHECK(loss_in(evaluated.err) == loss_in(trained.err));
  CHECK(loss_in(evaluated.err) != loss_in(untrained.err));
  CHECK(run.read("run/metrics.jsonl") == metrics);
}

TEST_CASE("flags of other launchers are honoured, said to do nothing, or refused with the way here",
          "[cmd][peers]") {
  if (testing::no_dstrain_here()) return;
  const TinyRun run;
  const auto says = [&](const std::string& flags, int code, const std::string& words) {
    const Answer answer = line(run, "launch --check --offline config.json " + flags);
    INFO(flags);
    CHECK(answer.code == code);
    CHECK_THAT(answer.err, Contains(words));
  };
  says("--no_python", 0, "--no_python has no effect: there is no Python program");
  says("--bind-cores-to-rank", 0, "has no effect: every rank is always given cores of its own");
  says("--do_eval", 2, "data.validation: missing, and it is what is evaluated");
  says("--save_pid", 2, "--save_pid is refused: ");
  says("--bind_core_list 0-3", 2, "taskset -c LIST");
  says("--autotuning run", 2, "dstrain estimate-memory");
  says("--launcher pdsh", 0, "");
  says("--launcher openmpi", 2, "mpirun");
  says("--nnodes 2 --num_nodes 3", 2, "--nnodes 2 and --num_nodes 3: leave one of them out");
  says("--nproc_per_node 2 --num_gpus 3", 2, "leave one of them out");
  says("--nproc_per_node=gpu", 2, "--nproc_per_node gpu: ");
  says("--standalone --nnodes 2", 2, "--standalone uses this machine alone");
}

}  // namespace
}  // namespace dstrain
