// dstrain itself, training, while a bit of one rank's memory changes.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <unistd.h>

#include "engine/base/file_descriptor.h"
#include "engine/config/config_json.h"
#include "engine/model/init.h"
#include "engine/train/make_run_plan.h"
#include "tests/failure/tiny_run.h"
#include "tests/harness/skip.h"

namespace dstrain {
namespace {

using Catch::Matchers::Contains;
using testing::Program;
using testing::TinyRun;

constexpr const char* kUnit = "blocks.1";
/// So small that no parameter moves: they keep their initial values, by which they are found.
const std::vector<std::string> kFrozen = {"optimizer.params.lr=1e-30"};

/// A few neighbouring parameters of the unit as they lie in every rank's memory.
std::vector<float> some_parameters(const std::string& file, int ranks) {
  LoadedConfig loaded = load_config(file, {.overrides = kFrozen});
  resolve_config(loaded, ranks);
  const RunPlan plan = make_run_plan(loaded.config, ranks, 0);
  for (const UnitDecl& unit : plan.blueprint.units()) {
    for (const ParamDecl& param : unit.params) {
      if (unit.name == kUnit && param.init == Init::kNormal) {
        std::vector<float> values(16);
        initial_values(param, loaded.config.training.seed, 64, values, 1);
        return values;
      }
    }
  }
  FAIL("the model has no matrix in " << kUnit);
  return {};
}

/// Looks for `values` in what a process may write to, and flips a bit of the first place. Says why
/// where that cannot be.
std::optional<std::string> flip_bit(pid_t pid, const std::vector<float>& values) {
  const std::string folder = "/proc/" + std::to_string(pid);
  const FileDescriptor memory(open((folder + "/mem").c_str(), O_RDWR | O_CLOEXEC));
  if (memory.get() < 0) return "this process may not write to its descendants' memory";
  const std::string_view wanted(reinterpret_cast<const char*>(values.data()),
                                values.size() * sizeof(float));
  std::ifstream maps(folder + "/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::string range;
    std::string rights;
    fields >> range >> rights;
    if (!rights.starts_with("rw-p")) continue;
    const auto begin = static_cast<off_t>(std::stoull(range, nullptr, 16));
    const auto end =
        static_cast<off_t>(std::stoull(range.substr(range.find('-') + 1), nullptr, 16));
    std::string content(static_cast<std::size_t>(end - begin), '\0');
    const ssize_t read = pread(memory.get(), content.data(), content.size(), begin);
    if (read <= 0) continue;
    const std::size_t at =
        std::string_view(content).substr(0, static_cast<std::size_t>(read)).find(wanted);
    if (at == std::string_view::npos) continue;
    const char flipped = static_cast<char>(content[at] ^ 0x10);
    if (pwrite(memory.get(), &flipped, 1, begin + static_cast<off_t>(at)) != 1) {
      return "its memory cannot be written to";
    }
    return std::nullopt;
  }
  FAIL("the parameters of " << kUnit << " are not in the rank's memory");
  return std::nullopt;
}

TEST_CASE("a bit that flips in a rank's memory ends the run at the next check, with its place",
          "[failure][slow]") {
  constexpr int kRanks = 3;
  const TinyRun run;
  Program launch({testing::dstrain_binary(), "launch", "--num_gpus", std::to_string(kRanks),
                  run.path("config.json"), "--set", kFrozen.front(), "--set",
                  "training.replica_check_interval=20"});
  REQUIRE(run.reaches_step(30));
  const std::vector<pid_t> ranks = launch.children();
  REQUIRE(ranks.size() == kRanks);
  const std::int64_t before = run.steps();
  const auto start = std::chrono::steady_clock::now();
  if (const auto why_not = flip_bit(ranks[1], some_parameters(run.path("config.json"), kRanks))) {
    testing::skip(*why_not);
    return;
  }
  CHECK(launch.wait(std::chrono::seconds{30}) == 10);
  std::cout << "a flipped bit in rank 1 ended the job after "
            << std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()
            << " s, " << run.steps() - before << " steps\n";
  INFO(launch.err());
  CHECK_THAT(launch.err(), Contains("rank 1 (host "));
  CHECK_THAT(launch.err(), Contains(") has other parameters of blocks.1 than ranks 0 and 2; at "
                                    "step "));
  CHECK_THAT(launch.last_line(), Contains("ended with exit code 10 (memory changed by itself)"));
  CHECK_FALSE(std::filesystem::exists(run.path("run/checkpoints/latest")));
}

}  // namespace
}  // namespace dstrain
