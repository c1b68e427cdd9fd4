// How long the compute threads of a process look before they sleep stands in its environment before
// the program starts, as OpenMP's library reads it when it is loaded.
#include <fstream>
#include <iterator>

#include <catch2/catch.hpp>

#include "tests/failure/tiny_run.h"

namespace dstrain::testing {
namespace {

using Catch::Matchers::Contains;

constexpr std::chrono::milliseconds kPatience{60'000};

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// NAME=VALUE after NAME=VALUE, each after a zero, as the process was started with them.
std::string environment_of(pid_t pid) {
  return '\0' + content_of("/proc/" + std::to_string(pid) + "/environ");
}

/// The environment of a rank that waits for another one, once it has decided how its threads wait.
std::string environment_of_rank(const Program::Environment& changes) {
  const TemporaryFolder folder;
  // Its name in lists of processes shows how far it is: it takes its own name after that.
  const std::string link = (folder.path() / "started").string();
  std::filesystem::create_symlink(std::filesystem::absolute(dstrain_binary()), link);
  Program::Environment environment = {{"RANK", "1"},
                                      {"WORLD_SIZE", "2"},
                                      {"MASTER_ADDR", "127.0.0.1"},
                                      {"MASTER_PORT", "1"},
                                      {"DSTRAIN_TOKEN", "5f0c3b9a7e1d2468ace013579bdf8642"}};
  environment.insert(environment.end(), changes.begin(), changes.end());
  const Program rank({link, "train", "configs/quickstart.json"}, environment, [] {
    unsetenv("GOMP_SPINCOUNT");
    unsetenv("OMP_WAIT_POLICY");
  });
  const std::string name = "/proc/" + std::to_string(rank.pid()) + "/comm";
  CAPTURE(rank.err());
  REQUIRE(becomes_true([&] { return content_of(name) == "dstrain\n"; }, kPatience));
  return environment_of(rank.pid());
}

TEST_CASE("threads of a rank spin briefly, whoever started it", "[cmd][threads]") {
  const std::string spins_briefly("\0GOMP_SPINCOUNT=1000\0", 21);
  CHECK_THAT(environment_of_rank({}), Contains(spins_briefly));
}

TEST_CASE("who says how threads wait is obeyed", "[cmd][threads]") {
  CHECK_THAT(environment_of_rank({{"OMP_WAIT_POLICY", "active"}}), !Contains("GOMP_SPINCOUNT"));
  const std::string own("\0GOMP_SPINCOUNT=7\0", 18);
  CHECK_THAT(environment_of_rank({{"GOMP_SPINCOUNT", "7"}}), Contains(own));
}

TEST_CASE("ranks have it from the launcher", "[cmd][threads]") {
  unsetenv("GOMP_SPINCOUNT");
  unsetenv("OMP_WAIT_POLICY");
  const TinyRun run;
  for (const bool decides : {false, true}) {
    const std::string output = decides ? "decides" : "run";
    std::vector<std::string> more = {"--set=training.output_dir=" + run.path(output)};
    if (decides) more.emplace_back("--env=OMP_WAIT_POLICY=passive");
    const Program launcher(run.launch(more));
    CAPTURE(decides);
    REQUIRE(becomes_true([&] { return !run.read(output + "/metrics.jsonl").empty(); }, kPatience));
    const std::vector<pid_t> ranks = launcher.children();
    CHECK(ranks.size() == 2);
    for (const pid_t rank : ranks) {
      const std::string environment = environment_of(rank);
      CHECK((environment.find("GOMP_SPINCOUNT=1000") == std::string::npos) == decides);
      CHECK((environment.find("OMP_WAIT_POLICY=passive") != std::string::npos) == decides);
    }
  }
}

}  // namespace
}  // namespace dstrain::testing
