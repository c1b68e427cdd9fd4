// `dstrain launch` of a run on GPUs, before a rank starts: what hosts say of their GPUs, and what
// is wrong with them; and which GPU each rank then takes. The program is the whole of dstrain,
// linked with the emulated GPUs.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/cluster/fleet_run.h"
#include "tests/cluster/skip.h"
#include "tests/failure/tiny_run.h"
#include "tests/harness/local_agents.h"
#include "tests/harness/program.h"
#include "tests/harness/reserved_port.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using testing::Program;

constexpr std::chrono::seconds kPatience{60};
const std::string kOnGpus = "training.device=cuda";

/// Launches as on a machine with `gpus` GPUs of 1 GiB.
Program launch_with(int gpus, std::vector<std::string> arguments) {
  setenv("DSTRAIN_EMULATED_GPUS", std::to_string(gpus).c_str(), 1);
  std::vector<std::string> argv = {EMULATED_DSTRAIN, "launch"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return Program(argv);
}

/// Adds what lets a shipped config start: the data of a tiny run.
std::vector<std::string> with_data(std::vector<std::string> arguments,
                                   const testing::TinyRun& tiny) {
  for (const std::string& set :
       {kOnGpus, "data.train=" + tiny.path("data/train"), std::string("data.validation=null")}) {
    arguments.insert(arguments.end(), {"--set", set});
  }
  return arguments;
}

TEST_CASE("--check tells this machine's GPUs, and who would share one", "[launch][cuda]") {
  Program each =
      launch_with(2, {"--num_gpus", "2", "--check", "configs/quickstart.json", "--set", kOnGpus});
  CHECK(each.wait(kPatience) == 0);
  CHECK_THAT(each.out(), Contains("2 × emulated GPU, 1.00 GiB, driver "));
  CHECK_THAT(each.err(), !Contains("share"));

  Program both = launch_with(1, {"--num_gpus", "2", "--share-gpus", "--check",
                                 "configs/quickstart.json", "--set", kOnGpus});
  CHECK(both.wait(kPatience) == 0);
  CHECK_THAT(both.err(), Contains("2 ranks share 1 GPU: they take turns"));
}

TEST_CASE("a GPU that is too small for the plan is refused before a rank starts",
          "[launch][cuda]") {
  setenv("DSTRAIN_BINARY", EMULATED_DSTRAIN, 1);
  const testing::TinyRun tiny;
  for (const bool is_check : {false, true}) {
    std::vector<std::string> arguments =
        with_data({"--num_gpus", "2", "configs/gpt2-124m.json"}, tiny);
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
  setenv("DSTRAIN_BINARY", EMULATED_DSTRAIN, 1);
  const testing::TinyRun tiny;
  Program run = launch_with(0, with_data({"configs/quickstart.json"}, tiny));
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

/// A run of one step of a tiny model, of which the logs tell which GPU each rank took.
class RecordedRun {
 public:
  RecordedRun() { setenv("DSTRAIN_BINARY", EMULATED_DSTRAIN, 1); }

  /// "0:cuda:1/GPU-02 1:cuda:2/GPU-03": rank, the name that it gives its GPU, and the beginning of
  /// the GPU's UUID, whose second figure counts from 1; then the end of the run.
  std::string launch(int gpus,
                     std::vector<std::string> flags,
                     const Program::Environment& environment = {}) {
    std::filesystem::remove_all(tiny_.path("run"));
    std::vector<std::string> arguments = std::move(flags);
    arguments.insert(arguments.end(), {tiny_.path("config.json"), "--set", "training.steps=1",
                                       "--set", "training.device=" + device});
    Program::Environment all = environment;
    all.emplace_back("DSTRAIN_EMULATED_GPUS", std::to_string(gpus));
    arguments.insert(arguments.begin(), {EMULATED_DSTRAIN, "launch"});
    Program program(arguments, all);
    const int code = program.wait(kPatience).value_or(-1);
    err = program.err();
    return gpus_of_ranks(tiny_) + fmt::format("ended {}", code);
  }
  static std::string gpus_of_ranks(const testing::TinyRun& run) {
    const std::regex line("rank=(\\d+) host=\\S+ gpu=\"(cuda:\\d+),.*uuid=(GPU-..)");
    std::string all;
    for (int rank = 0; rank < 8; ++rank) {
      const std::string log = run.read(fmt::format("run/log/rank-{:05}.log", rank));
      std::smatch found;
      if (!std::regex_search(log, found, line)) continue;
      all += found[1].str() + ":" + found[2].str() + "/" + found[3].str() + " ";
    }
    return all;
  }

  std::string device = "auto";
  std::string err;

 private:
  testing::TinyRun tiny_;
};

TEST_CASE("a rank takes the GPU of its slot, and every GPU has a rank where nobody chooses",
          "[launch][cuda]") {
  RecordedRun run;
  CHECK(run.launch(2, {}) == "0:cuda:0/GPU-01 1:cuda:1/GPU-02 ended 0");
  CHECK_THAT(run.err, Contains("device=cuda ranks=2 gpus=\"2 × emulated GPU\": training.device is "
                               "\"auto\""));
  CHECK(run.launch(3, {"--include", "localhost:1"}) == "0:cuda:1/GPU-02 ended 0");
  CHECK(run.launch(3, {"--exclude", "localhost:0,1"}) == "0:cuda:2/GPU-03 ended 0");
  CHECK(run.launch(3, {"--num_gpus", "1"}) == "0:cuda:0/GPU-01 ended 0");
}

TEST_CASE("slots count what CUDA_VISIBLE_DEVICES shows", "[launch][cuda]") {
  RecordedRun run;
  CHECK(run.launch(3, {}, {{"CUDA_VISIBLE_DEVICES", "2,0"}}) ==
        "0:cuda:0/GPU-03 1:cuda:1/GPU-01 ended 0");
  CHECK(run.launch(3, {"--include", "localhost:1"}, {{"CUDA_VISIBLE_DEVICES", "0,GPU-03"}}) ==
        "0:cuda:1/GPU-03 ended 0");
  CHECK(run.launch(3, {"--num_gpus", "2"}, {{"CUDA_VISIBLE_DEVICES", "1"}}) == "ended 2");
  CHECK_THAT(run.err, Contains("--num_gpus 2: this machine has 1 GPU"));
  CHECK(run.launch(3, {"--env", "CUDA_VISIBLE_DEVICES=1"}) == "ended 2");
  CHECK_THAT(run.err, Contains("choose slots with --include"));
}

TEST_CASE("more ranks than GPUs are refused, and share them where they may", "[launch][cuda]") {
  RecordedRun run;
  run.device = "cuda";
  CHECK(run.launch(1, {"--hostfile", "hostfiles/localhost"}) == "ended 3");
  CHECK_THAT(run.err, Contains("host localhost: there is no GPU for slot 1: it has 1 "
                               "(1 × emulated GPU)") &&
                          Contains("--share-gpus"));
  CHECK(run.launch(1, {"--hostfile", "hostfiles/localhost", "--share-gpus"}) ==
        "0:cuda:0/GPU-01 1:cuda:0/GPU-01 ended 0");
  CHECK_THAT(run.err, Contains("2 ranks share 1 GPU") &&
                          Contains("talks through the host's memory and not NCCL"));
}

TEST_CASE("auto falls back to CPUs with a reason, and cuda does not", "[launch][cuda]") {
  RecordedRun run;
  CHECK(run.launch(0, {"--num_gpus", "2"}) == "ended 0");
  CHECK_THAT(run.err, Contains("device=cpu ranks=2 processor=\"") &&
                          Contains("training.device is \"auto\", and the CUDA driver sees no "
                                   "device"));
  const Program::Environment old = {{"DSTRAIN_EMULATED_CAPABILITY", "75"}};
  CHECK(run.launch(1, {}, old) == "ended 0");
  CHECK_THAT(run.err, Contains("device=cpu ranks=1") &&
                          Contains("cuda:0, emulated GPU, cannot be used: it has compute "
                                   "capability 7.5, and this dstrain is built for 8.0 and later"));
  run.device = "cuda";
  CHECK(run.launch(1, {}, old) == "ended 3");
  CHECK_THAT(run.err, Contains("training.device is \"cuda\", but cuda:0, emulated GPU, cannot be "
                               "used: it has compute capability 7.5"));
}

/// Ranks that something else has started, as torchrun does: each finds its own GPU.
class TorchRun {
 public:
  TorchRun() { setenv("DSTRAIN_BINARY", EMULATED_DSTRAIN, 1); }

  /// Runs two ranks on one host, each with additional variables of its own.
  std::string run(const std::string& device,
                  const Program::Environment& first,
                  const Program::Environment& second) {
    std::filesystem::remove_all(tiny_.path("run"));
    const testing::ReservedPort reserved;
    const std::string port = std::to_string(reserved.number());
    std::vector<std::unique_ptr<Program>> ranks;
    for (const Program::Environment* own : {&first, &second}) {
      Program::Environment all = {{"RANK", std::to_string(ranks.size())},
                                  {"LOCAL_RANK", std::to_string(ranks.size())},
                                  {"WORLD_SIZE", "2"},
                                  {"LOCAL_WORLD_SIZE", "2"},
                                  {"GROUP_RANK", "0"},
                                  {"GROUP_WORLD_SIZE", "1"},
                                  {"MASTER_ADDR", "127.0.0.1"},
                                  {"MASTER_PORT", port},
                                  {"DSTRAIN_TOKEN", "5f0c3b9a7e1d2468ace013579bdf8642"}};
      all.insert(all.end(), own->begin(), own->end());
      ranks.push_back(std::make_unique<Program>(
          std::vector<std::string>{EMULATED_DSTRAIN, "train", tiny_.path("config.json"), "--set",
                                   "training.steps=1", "--set", "training.device=" + device},
          all));
    }
    std::string told;
    const std::regex line("rank=(\\d+) host=\\S+ gpu=\"(cuda:\\d+),.*uuid=(GPU-..)");
    err.clear();
    for (const auto& rank : ranks) {
      const int code = rank->wait(kPatience).value_or(-1);
      const std::string words = rank->err();
      err += words;
      std::smatch found;
      if (std::regex_search(words, found, line)) {
        told += found[1].str() + ":" + found[2].str() + "/" + found[3].str() + " ";
      }
      told += fmt::format("ended {} ", code);
    }
    return told;
  }

  std::string err;

 private:
  testing::TinyRun tiny_;
};

Program::Environment gpus(int count) {
  return {{"DSTRAIN_EMULATED_GPUS", std::to_string(count)}};
}

TEST_CASE("ranks that nobody gave a GPU agree on what they compute on when they meet",
          "[launch][cuda]") {
  TorchRun run;
  CHECK(run.run("auto", gpus(2), gpus(2)) == "0:cuda:0/GPU-01 ended 0 1:cuda:1/GPU-02 ended 0 ");
  CHECK_THAT(run.err, Contains("device=cuda ranks=2 gpus=\"2 × emulated GPU\""));
  // As with srun --gpus-per-task=1, each rank sees one GPU, which was chosen for it.
  CHECK(run.run("auto", {{"DSTRAIN_EMULATED_GPUS", "2"}, {"CUDA_VISIBLE_DEVICES", "1"}},
                {{"DSTRAIN_EMULATED_GPUS", "2"}, {"CUDA_VISIBLE_DEVICES", "0"}}) ==
        "0:cuda:0/GPU-02 ended 0 1:cuda:0/GPU-01 ended 0 ");
  CHECK(run.run("auto", gpus(0), gpus(0)) == "ended 0 ended 0 ");
  CHECK_THAT(run.err, Contains("device=cpu ranks=2"));
}

TEST_CASE("ranks whose GPUs do not fit together are refused once, by rank 0", "[launch][cuda]") {
  TorchRun run;
  CHECK(run.run("auto", gpus(1), gpus(1)) == "ended 2 ended 2 ");
  CHECK_THAT(run.err, Contains("is taken by two ranks") && Contains("DSTRAIN_SHARE_GPUS=1") &&
                          Contains("see rank 0"));
  const Program::Environment may_share = {{"DSTRAIN_EMULATED_GPUS", "1"},
                                          {"DSTRAIN_SHARE_GPUS", "1"}};
  CHECK(run.run("auto", may_share, may_share) ==
        "0:cuda:0/GPU-01 ended 0 1:cuda:0/GPU-01 ended 0 ");
}

TEST_CASE("--check tells the GPUs of every host", "[launch][cuda][cluster][slow]") {
  if (testing::no_cluster_here()) return;
  setenv("DSTRAIN_BINARY", EMULATED_DSTRAIN, 1);
  setenv("DSTRAIN_EMULATED_GPUS", "1", 1);
  testing::FleetRun run(2, 2);  // a host of the cluster has one
  const auto refused = run.launch({"--check", "--set", kOnGpus});
  CHECK(refused->wait(kPatience) == 3);
  CHECK_THAT(refused->err(),
             Contains("w0  GPUs  there is no GPU for slot 1: it has 1 (1 × emulated GPU)") &&
                 Contains("w1  GPUs") && Contains("2 of 2 hosts cannot"));
  const auto text = run.launch({"--check", "--share-gpus", "--set", kOnGpus});
  CHECK(text->wait(kPatience) == 0);
  CHECK_THAT(text->out(), Contains("1 × emulated GPU, 1.00 GiB, driver "));
  CHECK_THAT(text->err(), Contains("w0: 2 ranks share 1 GPU: they take turns") &&
                              Contains("w1: 2 ranks share 1 GPU"));
  const auto json = run.launch({"--check", "--share-gpus", "--json", "--set", kOnGpus});
  CHECK(json->wait(kPatience) == 0);
  const auto host = nlohmann::json::parse(json->out())["hosts"][1];
  REQUIRE(host["gpus"].size() == 1);
  CHECK(host["gpus"][0]["model"] == "emulated GPU");
  CHECK(host["gpus"][0]["memory_bytes"] == 1 << 30);
  CHECK_FALSE(host["driver"].get<std::string>().empty());
}

/// Sets what a login gives the host's agent from now on.
void set_on_host(testing::ClusterHost& host, const std::string& lines) {
  host.write(std::string(testing::Cluster::kHome) + "/.ssh/environment", lines);
}

TEST_CASE("over several hosts each rank takes the GPU of its slot there",
          "[launch][cuda][cluster][slow]") {
  if (testing::no_cluster_here()) return;
  setenv("DSTRAIN_BINARY", EMULATED_DSTRAIN, 1);
  unsetenv("DSTRAIN_EMULATED_GPUS");  // it would be passed to all ranks
  testing::FleetRun run(2, 3);
  for (int i = 0; i < 2; ++i) {
    run.host(i).run("echo PermitUserEnvironment yes >> /mnt/etc/sshd_config");
    run.host(i).kill_sshd();
    run.host(i).start_sshd();
  }
  set_on_host(run.host(0), "DSTRAIN_EMULATED_GPUS=3\n");
  set_on_host(run.host(1), "DSTRAIN_EMULATED_GPUS=4\nCUDA_VISIBLE_DEVICES=3,1,0\n");
  const auto launch = [&](std::vector<std::string> flags) {
    std::filesystem::remove_all(run.path("run"));
    flags.insert(flags.end(), {"--set", "training.steps=1", "--set", "training.device=auto"});
    const auto program = run.launch(flags);
    const int code = program->wait(kPatience).value_or(-1);
    UNSCOPED_INFO(program->err());
    return RecordedRun::gpus_of_ranks(run.tiny()) + fmt::format("ended {}", code);
  };
  CHECK(launch({"--include", "w0:0,2@w1:1"}) ==
        "0:cuda:0/GPU-01 1:cuda:2/GPU-03 2:cuda:1/GPU-02 ended 0");
  CHECK(launch({"--exclude", "w0:0@w1:1,2"}) ==
        "0:cuda:1/GPU-02 1:cuda:2/GPU-03 2:cuda:0/GPU-04 ended 0");
  set_on_host(run.host(1), "DSTRAIN_EMULATED_GPUS=0\n");
  const auto mixed = run.launch({"--set", "training.device=auto"});
  CHECK(mixed->wait(kPatience) == 3);
  CHECK_THAT(mixed->err(), Contains("w1  GPUs  training.device is \"auto\", and") &&
                               Contains("but w0 has GPUs") && Contains("--exclude w1"));
}

}  // namespace
}  // namespace dstrain
