// What a profiler sees of a step. The test runs itself once more with a recorder in place, as NVTX
// looks for a profiler only once in a process.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "engine/train/engine.h"
#include "engine/train/make_run_plan.h"
#include "tests/harness/local_rendezvous.h"
#include "tests/harness/tiny_model.h"
#include "tests/unit/checkpoint/scratch_folder.h"

namespace dstrain {
namespace {

TEST_CASE("one step of a tiny model", "[.][traced]") {
  const test::TinyOptions options{.accumulation = 2};
  const Config config = test::tiny_config(options, 1);
  const auto world = make_local_rendezvous(1);
  Engine engine(make_run_plan(config, 1, 0), *world[0], make_cpu_backend(1), 1);
  CHECK_NOTHROW(test::train_tiny_step(engine, options, /*step=*/6));
}

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::vector<std::string> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);)
    lines.push_back(line);
  return lines;
}

TEST_CASE("a profiler sees the step, its passes, and every unit in them", "[trace]") {
  const checkpoint_test::ScratchFolder folder;
  const std::filesystem::path record = folder.path() / "record";
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command = "NVTX_INJECTION64_PATH='" NVTX_RECORDER "' NVTX_RECORD='" +
                              record.string() + "' '" + self + "' '[traced]' > /dev/null";
  REQUIRE(std::system(command.c_str()) == 0);
  const std::vector<std::string> lines = lines_of(record);
  REQUIRE(lines.size() > 4);
  CHECK(lines[0] == "domain dstrain");
  CHECK(lines[1] == "0 step 7");
  CHECK(lines[2] == "1 load 0");
  CHECK(lines[3] == "1 forward 0");
  CHECK(lines.back() == "1 optimizer 0");
  const auto has = [&](const std::string& line) {
    return std::find(lines.begin(), lines.end(), line) != lines.end();
  };
  CHECK(has("1 backward 1"));
  // Two micro-batches, with forward and backward each.
  CHECK(std::count(lines.begin(), lines.end(), "2 blocks.0 0") == 4);
}

}  // namespace
}  // namespace dstrain
